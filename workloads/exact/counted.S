// Accesses pages a known number of times, and nothing else: no library, no stack.
// tests/truth/tests/exact.rs knows the numbers.
        .bss
        .balign 4096
        .globl  pages
        .type   pages, @object
pages:  .skip   8 * 4096
        .size   pages, . - pages

        .text
        .globl  _start
_start:
        lea     pages(%rip), %rbx

        mov     $1000, %ecx             // page 0: 1000 reads
1:      mov     8(%rbx), %rax
        dec     %ecx
        jnz     1b

        mov     $700, %ecx              // page 1: 700 writes
1:      mov     %al, 4096+5(%rbx)
        dec     %ecx
        jnz     1b

        mov     $300, %ecx              // pages 2 and 3: 300 reads over the border
1:      mov     3*4096-4(%rbx), %rax
        dec     %ecx
        jnz     1b

        mov     $200, %ecx              // pages 3 and 4: 200 writes over the border
1:      mov     %eax, 4*4096-1(%rbx)
        dec     %ecx
        jnz     1b

        mov     $100, %ecx              // pages 4 and 5: 100 reads of 16 bytes over the border
1:      movups  5*4096-8(%rbx), %xmm0
        dec     %ecx
        jnz     1b

        mov     $90, %ecx               // pages 4 and 5: 90 writes of 16 bytes, not in halves
1:      movups  %xmm0, 5*4096-3(%rbx)
        dec     %ecx
        jnz     1b

        mov     $50, %ecx               // page 6: 50 atomic additions, each a read and a write
1:      lock incq 6*4096+64(%rbx)
        dec     %ecx
        jnz     1b

        mov     $40, %ecx               // page 6: 40 additions, each a read and a write
1:      addq    $1, 6*4096+64(%rbx)
        dec     %ecx
        jnz     1b

        lea     6*4096(%rbx), %rsi      // page 6: 64 reads; page 7: 64 writes
        lea     7*4096(%rbx), %rdi
        mov     $64, %ecx
        rep movsb

        mov     $30, %ecx               // page 7: 30 reads of 16 bytes and 30 writes
1:      movaps  7*4096(%rbx), %xmm1
        movaps  %xmm1, 7*4096+16(%rbx)
        dec     %ecx
        jnz     1b

        mov     $20, %ecx               // page 7: 20 exchanges, each a read and a write
1:      xchg    %rax, 7*4096+256(%rbx)
        dec     %ecx
        jnz     1b

        xor     %edi, %edi
        mov     $60, %eax
        syscall

        .section .note.GNU-stack, "", @progbits
