// The bytes of models/tiny in the read-only data of the binary. MOXIE_EMBEDDED_DIR is that folder.
    .section .rodata
    .macro embed name, file
    .balign 64
    .global \name\()_begin
    .global \name\()_end
\name\()_begin:
    .incbin "\file"
\name\()_end:
    .byte 0
    .endm

    embed moxie_embedded_weights, MOXIE_EMBEDDED_DIR/model.safetensors
    embed moxie_embedded_config, MOXIE_EMBEDDED_DIR/config.json
    embed moxie_embedded_tokenizer, MOXIE_EMBEDDED_DIR/tokenizer.json

    .section .note.GNU-stack, "", %progbits
