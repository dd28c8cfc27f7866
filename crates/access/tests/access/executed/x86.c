/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Ways of addressing memory that compilers seldom use: string instructions in both directions, segment bases, every form
 * of base, index, scale and displacement, `enter` and `leave`, `xlat`, wide, masked and gathering vectors. `main` calls each
 * block; the program writes nothing.
 */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

uint8_t area[65536] __attribute__((aligned(4096)));
uint8_t other[4096] __attribute__((aligned(64)));
uint32_t indices[8] = {1, 5, 2, 9, 30, 4, 7, 12};
uint32_t mask[8] = {~0u, 0, ~0u, 0, 0, ~0u, ~0u, 0};

void strings(void);
void addressing(void);
void stacks(void);
void segments(void);
void changing(void);
void vectors(void);
void computed(void);
void jumps(void);

__asm__(
	".text\n"
	".macro begin name\n .type \\name, @function\n .globl \\name\n\\name:\n.endm\n"
	".macro end name\n ret\n .size \\name, . - \\name\n.endm\n"

	"begin strings\n"
	" push %rbx\n"
	" lea area+2048(%rip), %rsi\n lea other+2048(%rip), %rdi\n"
	" .irp way, cld, std\n \\way\n"
	" .irp op, movsb, movsw, movsl, movsq, stosb, stosw, stosl, stosq, lodsb, lodsw, lodsl, lodsq, cmpsb, cmpsw, cmpsl, cmpsq, scasb, scasw, scasl, scasq\n"
	" \\op\n mov %rsi, %rax\n .endr\n"
	" mov $5, %ecx\n rep movsb\n nop\n"
	" mov $3, %ecx\n rep movsq\n xor %eax, %eax\n"
	" mov $4, %ecx\n rep stosl\n inc %eax\n"
	" mov $3, %ecx\n repe cmpsb\n nop\n"
	" mov $9, %ecx\n mov $77, %al\n repne scasb\n nop\n"
	" mov $2, %ecx\n rep lodsw\n nop\n"
	" xor %ecx, %ecx\n rep movsb\n mov (%rsi), %al\n"
	" .endr\n cld\n"
	/* 32-bit addresses */
	" lea area(%rip), %esi\n lea other(%rip), %edi\n addr32 movsl\n nop\n mov $2, %ecx\n addr32 rep movsb\n nop\n"
	" pop %rbx\n"
	"end strings\n"

	"begin addressing\n"
	" push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
	/* Every base with every scale and displacement; the index and the target differ in turn. */
	" .irp base, rax,rcx,rdx,rbx,rbp,rsi,rdi,r8,r9,r10,r11,r12,r13,r14,r15\n"
	" lea area+1024(%rip), %\\base\n"
	" mov (%\\base), %eax\n"
	" lea area+1024(%rip), %\\base\n"
	" mov 8(%\\base), %ecx\n"
	" lea area+1024(%rip), %\\base\n"
	" mov -128(%\\base), %dl\n"
	" lea area+1024(%rip), %\\base\n"
	" mov 0x1234(%\\base), %bx\n"
	" lea area+1024(%rip), %\\base\n"
	" lea area+1024(%rip), %\\base\n"
	" movq $9, 16(%\\base)\n"
	" addl $9, -16(%\\base)\n"
	" push %\\base\n mov $3, %\\base\n lea area(%rip), %r11\n"
	" .ifnc \\base,r11\n"
	" mov (%r11,%\\base), %eax\n mov $3, %\\base\n"
	" movzwl 5(%r11,%\\base,2), %r8d\n mov $3, %\\base\n"
	" movsbq 0x555(%r11,%\\base,4), %r9\n mov $3, %\\base\n"
	" mov %rdx, 0x20(%r11,%\\base,8)\n"
	" shl $8, %\\base\n mov area(,%\\base,8), %rdx\n"
	" .endif\n"
	" pop %\\base\n"
	" .endr\n"
	" mov area+8(%rip), %rax\n mov %rax, area+16(%rip)\n addq $5, area+24(%rip)\n"
	" lea area(%rip), %rbx\n mov %ebx, %ecx\n mov 8(%ecx), %eax\n mov $2, %esi\n mov (%ecx,%esi,4), %eax\n"
	" mov area, %eax\n movabs area, %eax\n movabs %al, area+7\n"
	" mov (%rsp), %rax\n mov -8(%rsp), %rax\n mov 8(%rsp,%rsi,8), %rax\n"
	" mov %rbx, %rcx\n mov (%rcx), %rcx\n nop\n"
	" mov %bl, %al\n movzbl %bh, %eax\n and $0xff, %eax\n mov (%rbx,%rax), %al\n nop\n"
	" pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n"
	"end addressing\n"

	"begin stacks\n"
	" push %rbp\n mov %rsp, %rbp\n push $7\n push $0x12345\n pushw $3\n popw %ax\n push area(%rip)\n pop area+8(%rip)\n"
	" push %rsp\n pop %rax\n pushq (%rsp)\n popq 8(%rsp)\n pushf\n popf\n pop %rcx\n pop %rcx\n"
	" enter $32, $0\n mov %rax, -8(%rbp)\n leave\n nop\n"
	" enter $16, $1\n leave\n nop\n"
	" call 1f\n mov (%rsp), %rax\n jmp 2f\n"
	"1: mov (%rsp), %rdx\n ret\n"
	"2: lea 3f(%rip), %rax\n call *%rax\n mov %rax, area(%rip)\n lea area(%rip), %rdx\n call *(%rdx)\n nop\n jmp 4f\n"
	"3: sub $8, %rsp\n add $8, %rsp\n ret\n"
	"4: leave\n"
	"end stacks\n"

	"begin segments\n"
	" mov %fs:0, %rax\n nop\n"
	" xor %edx, %edx\n mov %fs:8(%rdx), %rcx\n nop\n mov %gs:16, %rcx\n mov $2, %edx\n mov %gs:(,%rdx,8), %rcx\n nop\n"
	" mov %gs:8(%rdx,%rdx,4), %ecx\n movq $4, %gs:64\n nop\n addl $1, %gs:(%edx)\n nop\n"
	" lea area(%rip), %rsi\n lea other(%rip), %rdi\n xor %esi, %esi\n gs movsb\n nop\n gs lodsl\n nop\n"
	"end segments\n"

	"begin changing\n"
	" push %rbx\n"
	" lea area(%rip), %rdi\n mov $5, %eax\n mov $6, %ecx\n"
	" cmpxchg %ecx, (%rdi)\n nop\n lock cmpxchg %cl, 3(%rdi)\n nop\n xor %edx, %edx\n xor %ebx, %ebx\n"
	" cmpxchg8b 8(%rdi)\n nop\n lock cmpxchg16b 16(%rdi)\n nop\n"
	" xadd %ecx, (%rdi)\n nop\n xchg %rdi, 32(%rdi)\n lea area(%rip), %rdi\n xchg %al, (%rdi)\n nop\n"
	" lock incl (%rdi)\n nop\n notq 8(%rdi)\n nop\n negb 1(%rdi)\n nop\n shll $3, (%rdi)\n nop\n rolw %cl, 6(%rdi)\n nop\n"
	" sete 9(%rdi)\n nop\n btsl $3, 12(%rdi)\n nop\n btl %eax, (%rdi)\n nop\n movslq %eax, %rax\n neg %rax\n btsq %rax, 256(%rdi)\n mov $3, %eax\n btcw %ax, 256(%rdi)\n nop\n"
	" cmpl $3, (%rdi)\n nop\n testb $1, 4(%rdi)\n nop\n imul 8(%rdi), %eax\n nop\n mull (%rdi)\n nop\n"
	" movl $7, 40(%rdi)\n xor %edx, %edx\n divl 40(%rdi)\n nop\n"
	" cmovne 16(%rdi), %eax\n nop\n cmove 24(%rdi), %rax\n nop\n movbe (%rdi), %eax\n nop\n"
	" mov %rdi, %rbx\n mov $9, %al\n xlat\n nop\n"
	" bsf (%rdi), %eax\n nop\n popcnt 8(%rdi), %rax\n nop\n adcx 8(%rdi), %rax\n nop\n crc32b 3(%rdi), %eax\n nop\n"
	" fildl (%rdi)\n nop\n fistpl 64(%rdi)\n nop\n fldl 8(%rdi)\n fstpt 80(%rdi)\n nop\n fldt 80(%rdi)\n fstps 100(%rdi)\n nop\n"
	" fnstcw 104(%rdi)\n fldcw 104(%rdi)\n nop\n stmxcsr 108(%rdi)\n ldmxcsr 108(%rdi)\n nop\n"
	" prefetcht0 (%rdi)\n nop\n prefetchw 64(%rdi)\n nop\n lea 8(%rdi), %rax\n nopl 8(%rax)\n nop\n"
	" fxsave 512(%rdi)\n nop\n fxrstor 512(%rdi)\n nop\n"
	" pop %rbx\n"
	"end changing\n"

	"begin vectors\n"
	" lea area(%rip), %rdi\n mov $32, %esi\n"
	" movups (%rdi), %xmm0\n nop\n movaps %xmm0, 16(%rdi)\n nop\n movdqa (%rdi,%rsi), %xmm1\n nop\n movss 4(%rdi), %xmm1\n nop\n"
	" movsd %xmm1, 9(%rdi)\n nop\n movhps 8(%rdi), %xmm1\n nop\n movq %xmm1, 3(%rdi)\n nop\n movd 5(%rdi), %xmm2\n nop\n"
	" paddd 32(%rdi), %xmm0\n nop\n pinsrw $3, 7(%rdi), %xmm0\n nop\n pextrb $3, %xmm0, 7(%rdi)\n nop\n cvtsi2sdl (%rdi), %xmm3\n nop\n"
	" movntps %xmm0, 48(%rdi)\n nop\n lddqu 1(%rdi), %xmm4\n nop\n"
	" vmovups (%rdi), %ymm0\n nop\n vmovups %ymm0, 33(%rdi)\n nop\n vaddps (%rdi,%rsi,2), %ymm0, %ymm1\n nop\n"
	" vbroadcastss 8(%rdi), %ymm1\n nop\n vbroadcastf128 16(%rdi), %ymm1\n nop\n vpmovzxbw 3(%rdi), %ymm2\n nop\n vinserti128 $1, 4(%rdi), %ymm1, %ymm2\n nop\n"
	" vextracti128 $1, %ymm2, 5(%rdi)\n nop\n vpbroadcastb 9(%rdi), %xmm2\n nop\n"
	" vmovdqu indices(%rip), %ymm3\n vmovdqu mask(%rip), %ymm2\n"
	" vmaskmovps (%rdi), %ymm2, %ymm4\n add $8, %rsi\n vmaskmovps %ymm4, %ymm2, (%rdi)\n add $8, %rsi\n vpmaskmovq (%rdi), %ymm2, %ymm4\n add $8, %rsi\n"
	" vpgatherdd %ymm2, (%rdi,%ymm3,4), %ymm5\n add $8, %rsi\n mov (%rdi,%rsi), %rax\n"
	" vpcmpeqd %ymm2, %ymm2, %ymm2\n vpgatherdq %ymm2, 8(%rdi,%xmm3,8), %ymm5\n add $8, %rsi\n"
	" vpcmpeqd %ymm2, %ymm2, %ymm2\n vgatherdps %ymm2, (%rdi,%ymm3,1), %ymm5\n nop\n vzeroupper\n"
	" maskmovdqu %xmm1, %xmm0\n nop\n"
	"end vectors\n"

	/* Indices that their own loads overwrite, made anew. */
	".macro through text:vararg\n \\text\n mov (%rdi,%rax), %rax\n nop\n.endm\n"
	"begin computed\n"
	" lea area(%rip), %rdi\n mov $21, %edx\n mov $3, %ecx\n"
	" through lea 5(%rdx,%rcx,4), %rax\n through lea (%edx,%ecx), %eax\n"
	" mov %rdx, %rax\n through add %rcx, %rax\n mov %rdx, %rax\n through sub $9, %rax\n"
	" mov %edx, %eax\n through xor $0x55, %eax\n mov %edx, %eax\n through and $0x1c, %eax\n mov %edx, %eax\n through or %ecx, %eax\n"
	" mov %edx, %eax\n through shl $3, %eax\n mov %rdx, %rax\n through shr $2, %rax\n mov %edx, %eax\n through sar $1, %eax\n"
	" through imul $12, %rdx, %rax\n mov %edx, %eax\n through imul %ecx, %eax\n"
	" through movzbl %dl, %eax\n through movsbl %dl, %eax\n through movswq %dx, %rax\n through movslq %edx, %rax\n"
	" mov %edx, %eax\n through inc %eax\n mov %edx, %eax\n through dec %rax\n mov %rdx, %rax\n neg %rax\n through neg %rax\n"
	" mov %rdx, %rax\n not %rax\n through not %rax\n mov %edx, %eax\n bswap %eax\n through bswap %eax\n mov %edx, %eax\n through cltq\n"
	" mov %rdx, %rax\n bswap %rax\n through bswap %rax\n mov $7, %al\n movzbl %al, %eax\n through mov %eax, %eax\n"
	" mov (%rdi), %rcx\n add $8, %rdi\n mov -8(%rdi), %rcx\n nop\n lea 8(%rdi), %rdi\n mov -16(%rdi), %rcx\n sub $16, %rdi\n nop\n"
	" mov $5, %ecx\n add %rcx, %rdi\n mov (%rdi), %rdx\n sub %rcx, %rdi\n xor %rcx, %rdi\n xor %rcx, %rdi\n mov (%rdi), %rdx\n nop\n"
	"end computed\n"

	"begin jumps\n"
	" push %rbx\n lea area(%rip), %rdi\n mov $6, %ecx\n"
	"1: mov (%rdi,%rcx,8), %rax\n dec %ecx\n jne 1b\n"
	" mov $0x50, %edx\n"
	" .irp cond, e,ne,b,ae,be,a,s,ns,p,np,l,ge,le,g,o,no\n"
	" cmp $0x50, %edx\n j\\cond 2f\n add $8, %edx\n mov (%rdi,%rdx), %rax\n"
	"2: test $0x10, %edx\n j\\cond 3f\n mov 8(%rdi,%rdx), %rax\n"
	"3: mov %edx, %ebx\n sub $0x60, %ebx\n j\\cond 4f\n mov 16(%rdi), %rax\n"
	"4: lea -1(%rdx), %rbx\n inc %ebx\n j\\cond 5f\n mov 24(%rdi), %rax\n"
	"5: cmp %dl, %cl\n mov (%rdi), %rax\n cmov\\cond 8(%rdi), %rbx\n set\\cond 40(%rdi)\n nop\n"
	" .endr\n"
	" mov $3, %ecx\n 6: mov (%rdi,%rcx,4), %eax\n loop 6b\n jrcxz 7f\n mov (%rdi), %eax\n"
	"7: jmp 8f\n mov (%rdi), %rax\n8: nop\n mov 8(%rdi), %rax\n nop\n"
	" pop %rbx\n"
	"end jumps\n");

int main(void)
{
	if (syscall(SYS_arch_prctl, ARCH_SET_GS, other))
		return 1;
	strings();
	addressing();
	stacks();
	segments();
	changing();
	vectors();
	computed();
	jumps();
	return 0;
}
