// The bytes of the page, as it is and compressed. Its folder is on the path of the assembler.
    .section .rodata
    .macro embed name, file
    .global \name\()_begin
    .global \name\()_end
\name\()_begin:
    .incbin "\file"
\name\()_end:
    .byte 0
    .endm

    embed moxie_page, page.html
    embed moxie_page_gzip, page.html.gz

    .section .note.GNU-stack, "", %progbits
