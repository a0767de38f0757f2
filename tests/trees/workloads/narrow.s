# A 32-bit program without any library: writes a line and ends.
        .code32
        .globl  _start
        .text
_start: movl    $4, %eax
        movl    $1, %ebx
        movl    $line, %ecx
        movl    $(end - line), %edx
        int     $0x80
        movl    $1, %eax
        xorl    %ebx, %ebx
        int     $0x80
        .section .rodata
line:   .ascii  "narrow: 32 bits\n"
end:
