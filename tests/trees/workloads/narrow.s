# A 32-bit program without any library: writes a line, and ends two seconds later, so that who looks from outside sees it.
        .code32
        .globl  _start
        .text
_start: movl    $4, %eax
        movl    $1, %ebx
        movl    $line, %ecx
        movl    $(end - line), %edx
        int     $0x80
        movl    $162, %eax
        movl    $pause, %ebx
        xorl    %ecx, %ecx
        int     $0x80
        movl    $1, %eax
        xorl    %ebx, %ebx
        int     $0x80
        .section .rodata
line:   .ascii  "narrow: 32 bits\n"
end:
        .balign 4
pause:  .long   2, 0
