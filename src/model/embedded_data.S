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
#ifdef MOXIE_EMBEDDED_EAGLE3
    embed moxie_eagle3_weights, eagle3/model.safetensors
    embed moxie_eagle3_config, eagle3/config.json
#endif
#ifdef MOXIE_EMBEDDED_DFLASH
    embed moxie_dflash_weights, dflash/model.safetensors
    embed moxie_dflash_config, dflash/config.json
#endif

    .section .note.GNU-stack, "", %progbits
