// The bytes of models/tiny, as read-only data. That folder is on the path of the assembler.
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

    embed moxie_embedded_weights, model.safetensors
    embed moxie_embedded_config, config.json
    embed moxie_embedded_tokenizer, tokenizer.json

    .section .note.GNU-stack, "", %progbits
