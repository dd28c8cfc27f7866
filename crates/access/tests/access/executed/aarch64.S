/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Every way of addressing memory that AArch64 has, each between instructions that overwrite registers. It stands alone, so that
 * what it does is the same on every machine.
 */
	.arch armv8.5-a+sve+memtag+rcpc
	.bss
	.balign 4096
	.type	stack, %object
stack:	.space	4096
stack_end:
	.type	area, %object
area:	.space	65536

	.data
	.balign 16
list:	.quad	node_b, 11
node_b:	.quad	node_c, 22
node_c:	.quad	0, 33
indices: .word 1, 5, 2, 9, 30, 4, 7, 12

	.text
	.globl	_start
	.type	_start, %function
_start:
	adrp	x0, stack_end
	add	x0, x0, :lo12:stack_end
	mov	sp, x0
	.irp	n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29
	mov	x\n, #(\n * 3)
	.endr
	bl	immediates
	bl	registers
	bl	pairs
	bl	exclusives
	bl	atomics
	bl	structures
	bl	computed
	bl	branches
	bl	vectors
	mov	x0, #0
	mov	x8, #93
	svc	#0
	.size	_start, . - _start

	.macro	begin name
	.type	\name, %function
\name:
	.endm
	.macro	end name
	.size	\name, . - \name
	.endm

begin immediates
	stp	x29, x30, [sp, #-16]!
	mov	x29, sp
	adrp	x1, area
	add	x1, x1, :lo12:area
	.irp	op, ldr, str
	\op	x2, [x1]
	\op	x2, [x1, #32760]
	\op	w2, [x1, #16]
	\op	x2, [x1, #8]!
	\op	w2, [x1], #12
	\op	x2, [x1, #-16]!
	\op	x2, [x1], #-4
	\op	q3, [x1, #160]
	\op	d3, [x1], #8
	\op	s3, [x1, #-8]!
	\op	h3, [x1, #2]
	\op	b3, [x1, #1]
	\op	x2, [sp]
	\op\()b w2, [x1, #3]
	\op\()b w2, [x1], #1
	\op\()h w2, [x1, #6]
	\op\()h w2, [x1, #2]!
	.endr
	ldrsb	w2, [x1, #5]
	ldrsb	x2, [x1], #3
	ldrsh	w2, [x1, #4]
	ldrsh	x2, [x1, #-6]!
	ldrsw	x2, [x1, #8]
	ldrsw	x2, [x1], #4
	.irp	op, ldur, stur
	\op	x2, [x1, #-7]
	\op	w2, [x1, #255]
	\op	q3, [x1, #-256]
	\op	b3, [x1, #1]
	\op\()b w2, [x1, #-1]
	\op\()h w2, [x1, #-3]
	.endr
	ldursb	x2, [x1, #-9]
	ldursh	w2, [x1, #-9]
	ldursw	x2, [x1, #-9]
	ldtr	x2, [x1, #8]
	sttr	w2, [x1, #4]
	ldtrb	w2, [x1]
	sttrh	w2, [x1, #2]
	ldtrsw	x2, [x1, #-4]
	/* What is loaded overwrites the base, which is made anew from where it came from. */
	add	x4, x1, #64
	ldr	x4, [x4]
	adrp	x4, indices
	ldrb	w4, [x4, :lo12:indices]
	ldr	x5, literal
	ldr	w5, literal
	ldr	d5, literal
	ldr	q5, literal
	ldrsw	x5, literal
	prfm	pldl1keep, [x1, #8]
	nop
	prfm	pstl1strm, literal
	prfum	pldl1keep, [x1, #-9]
	prfm	pldl1keep, [x1, x2]
	/* The upper byte of an address is a tag that does not matter. */
	mov	x6, x1
	movk	x6, #0x5a00, lsl #48
	ldr	x2, [x6, #8]
	str	xzr, [x6]
	ldr	xzr, [x1]
	ldp	x29, x30, [sp], #16
	ret
	.balign 16
literal:
	.quad 0x1234, 0x5678
end immediates

begin registers
	adrp	x1, area
	add	x1, x1, :lo12:area
	mov	x2, #24
	mov	x3, #-8
	mov	w4, #-4
	add	x9, x1, #1024
	ldr	x5, [x1, x2]
	ldr	x5, [x1, x2, lsl #3]
	ldr	w5, [x1, x2, lsl #2]
	ldr	x5, [x9, x3]
	ldr	x5, [x9, w4, sxtw]
	ldr	x5, [x9, w4, sxtw #3]
	ldr	x5, [x1, w2, uxtw #3]
	ldr	x5, [x9, x3, sxtx]
	ldr	x5, [x9, xzr]
	strb	w5, [x1, x2]
	strb	w5, [x9, w4, sxtw]
	strh	w5, [x9, w4, sxtw #1]
	ldrh	w5, [x1, x2, lsl #1]
	ldrsb	x5, [x1, x2]
	ldrsh	x5, [x1, w2, uxtw #1]
	ldrsw	x5, [x1, x2, lsl #2]
	ldr	q0, [x1, x2, lsl #4]
	str	q0, [x1, x2, lsl #4]
	ldr	d0, [x1, x2, lsl #3]
	str	s0, [x1, x2, lsl #2]
	ldr	h0, [x9, w4, sxtw #1]
	ldr	b0, [x9, x3]
	/* The index is overwritten, and comes from what is not. */
	and	x6, x2, #0x1f
	ldr	x6, [x1, x6, lsl #3]
	ubfx	x6, x2, #2, #6
	ldrb	w6, [x1, x6]
	mov	x7, x1
	ldr	x1, [x1, x2]
	mov	x1, x7
	ret
end registers

begin pairs
	stp	x29, x30, [sp, #-32]!
	adrp	x1, area
	add	x1, x1, :lo12:area
	.irp	op, stp, ldp
	\op	x2, x3, [x1]
	\op	x2, x3, [x1, #-16]!
	\op	x2, x3, [x1], #32
	\op	w2, w3, [x1, #4]
	\op	w2, w3, [x1], #-8
	\op	q2, q3, [x1, #16]
	\op	q2, q3, [x1], #32
	\op	d2, d3, [x1, #-8]!
	\op	s2, s3, [x1, #12]
	.endr
	ldpsw	x2, x3, [x1, #8]
	ldpsw	x2, x3, [x1], #8
	ldnp	x2, x3, [x1, #16]
	stnp	q2, q3, [x1, #32]
	/* One of a pair overwrites the base. */
	mov	x4, x1
	ldp	x4, x5, [x4]
	ldp	x29, x30, [sp], #32
	ret
end pairs

begin exclusives
	adrp	x1, area
	add	x1, x1, :lo12:area
1:	ldxr	x2, [x1]
	add	x2, x2, #1
	stxr	w3, x2, [x1]
	cbnz	w3, 1b
2:	ldaxr	w2, [x1]
	stlxr	w3, w2, [x1]
	cbnz	w3, 2b
3:	ldxp	x2, x4, [x1]
	stxp	w3, x2, x4, [x1]
	cbnz	w3, 3b
4:	ldaxp	w2, w4, [x1]
	stlxp	w3, w2, w4, [x1]
	cbnz	w3, 4b
	ldxrb	w2, [x1]
	ldxrh	w2, [x1]
	clrex
	ldar	x2, [x1]
	ldarb	w2, [x1]
	ldarh	w2, [x1]
	stlr	x2, [x1]
	stlrb	w2, [x1]
	stlrh	w2, [x1]
	ldlar	w2, [x1]
	stllr	w2, [x1]
	ldapr	x2, [x1]
	ldapr	w2, [x1]
	ldaprb	w2, [x1]
	ldaprh	w2, [x1]
	ldapur	x2, [x1, #8]
	ldapurb	w2, [x1, #-1]
	ldapursw x2, [x1, #4]
	stlur	x2, [x1, #16]
	stlurh	w2, [x1, #2]
	ret
end exclusives

begin atomics
	adrp	x1, area
	add	x1, x1, :lo12:area
	mov	x2, #1
	.irp	op, ldadd, ldclr, ldeor, ldset, ldsmax, ldsmin, ldumax, ldumin, swp
	\op	x2, x3, [x1]
	\op\()a w2, w3, [x1]
	\op\()al x2, x3, [x1]
	\op\()lb w2, w3, [x1]
	\op\()h w2, w3, [x1]
	.endr
	stadd	x2, [x1]
	cas	x2, x3, [x1]
	casal	w2, w3, [x1]
	casb	w2, w3, [x1]
	cash	w2, w3, [x1]
	mov	x2, #7
	cas	x2, x3, [x1]
	casp	x2, x3, x4, x5, [x1]
	caspal	w2, w3, w4, w5, [x1]
	mov	x7, x1
	ldadd	x2, x7, [x7]
	ret
end atomics

begin structures
	adrp	x1, area
	add	x1, x1, :lo12:area
	mov	x2, #40
	.irp	op, ld, st
	\op\()1	{v0.16b}, [x1]
	\op\()1	{v0.8b}, [x1]
	\op\()1	{v0.4s, v1.4s}, [x1], #32
	\op\()1	{v0.2d, v1.2d, v2.2d}, [x1]
	\op\()1	{v0.2s, v1.2s, v2.2s, v3.2s}, [x1], x2
	\op\()2	{v0.16b, v1.16b}, [x1]
	\op\()2	{v0.4h, v1.4h}, [x1], #16
	\op\()3	{v0.4s, v1.4s, v2.4s}, [x1]
	\op\()3	{v0.8b, v1.8b, v2.8b}, [x1], x2
	\op\()4	{v0.2d, v1.2d, v2.2d, v3.2d}, [x1]
	\op\()4	{v0.8h, v1.8h, v2.8h, v3.8h}, [x1], #64
	\op\()1	{v0.b}[5], [x1]
	\op\()1	{v0.h}[3], [x1], #2
	\op\()1	{v0.s}[1], [x1]
	\op\()1	{v0.d}[1], [x1], x2
	\op\()2	{v0.b, v1.b}[9], [x1]
	\op\()2	{v0.d, v1.d}[0], [x1], #16
	\op\()3	{v0.h, v1.h, v2.h}[2], [x1]
	\op\()3	{v0.s, v1.s, v2.s}[2], [x1], x2
	\op\()4	{v0.s, v1.s, v2.s, v3.s}[3], [x1]
	\op\()4	{v0.b, v1.b, v2.b, v3.b}[7], [x1], #4
	.endr
	ld1r	{v0.16b}, [x1]
	ld1r	{v0.4s}, [x1], #4
	ld2r	{v0.8h, v1.8h}, [x1]
	ld3r	{v0.2d, v1.2d, v2.2d}, [x1], x2
	ld4r	{v0.2s, v1.2s, v2.2s, v3.2s}, [x1]
	ret
end structures

begin computed
	adrp	x1, area
	add	x1, x1, :lo12:area
	mov	x2, #21
	mov	x3, #5
	.macro	through text:vararg
	\text
	ldr	x4, [x1, x4]
	nop
	.endm
	through	add x4, x2, x3
	through	add x4, x2, x3, lsl #4
	through	add x4, x2, w3, uxtb #2
	through	sub x4, x2, x3
	through	sub x4, x2, #9
	through	neg x4, x3, asr #63
	through	adds x4, x2, #1, lsl #12
	through	and x4, x2, #0x3f0
	through	orr x4, x2, x3, lsl #3
	through	eor x4, x2, x3, ror #62
	through	bic x4, x2, x3
	through	and w4, w2, #0xff00ff
	through	movz x4, #0x123
	through	lsl x4, x2, #4
	through	lsr w4, w2, #1
	through	asr x4, x2, #2
	through	ubfiz x4, x2, #3, #5
	through	sbfx x4, x2, #0, #6
	through	sxtw x4, w2
	through	uxtb w4, w2
	through	extr x4, x2, x3, #61
	through	ror w4, w2, #30
	through	madd x4, x2, x3, x2
	through	msub x4, x3, x3, x2
	through	mul w4, w2, w3
	through	smaddl x4, w2, w3, x2
	through	umull x4, w2, w3
	through	umulh x4, x2, x3
	through	smulh x4, x2, x3
	through	udiv x4, x2, x3
	through	sdiv w4, w2, w3
	through	lsl x4, x2, x3
	through	lsr w4, w2, w3
	through	ror x4, x3, xzr
	through	clz x4, x2
	through	clz w4, w2
	/* Reversals leave large numbers. */
	.macro	twice op, register
	\op	\register\()4, \register\()2
	\op	\register\()4, \register\()4
	ldr	x4, [x1, x4]
	nop
	.endm
	twice	rbit, x
	twice	rbit, w
	twice	rev, x
	twice	rev, w
	twice	rev16, x
	twice	rev32, x
	/* Bases that have moved since. */
	add	x5, x1, #512
	ldr	x6, [x5]
	add	x5, x5, #8
	ldr	x6, [x5, #-8]
	sub	x5, x5, x3, lsl #3
	eor	x7, x7, x3
	ldr	x6, [x5, x3]
	mvn	x3, x3
	mvn	x3, x3
	ret
end computed

begin branches
	stp	x29, x30, [sp, #-16]!
	adrp	x1, list
	add	x1, x1, :lo12:list
	mov	x0, #0
1:	ldr	x2, [x1, #8]
	add	x0, x0, x2
	ldr	x1, [x1]
	cbnz	x1, 1b
	adrp	x1, area
	add	x1, x1, :lo12:area
	mov	x3, #6
2:	ldr	x2, [x1, x3, lsl #3]
	subs	x3, x3, #1
	b.ne	2b
	mov	x3, #0x50
	.irp	cond, eq, ne, hs, lo, mi, pl, vs, vc, hi, ls, ge, lt, gt, le
	cmp	x3, #0x50
	b.\cond	3f
	add	x3, x3, #8
	ldr	x2, [x1, x3]
3:	cmn	x3, #1
	csel	x4, x3, x1, \cond
	csinc	x5, x3, x3, \cond
	csneg	w6, w3, w3, \cond
	csinv	x7, x3, x3, \cond
	ccmp	x3, #8, #4, \cond
	cset	x4, \cond
	adc	x5, x3, x3
	b.\cond	4f
	ldr	x2, [x1, x4, lsl #3]
4:	tst	x3, #0x10
	and	x5, x5, #0xff8
	ldr	x2, [x1, x5]
	.endr
	/* A load that is not the one before where the branch goes. */
	mov	x4, #3
5:	cmp	x4, #2
	b.eq	6f
	ldr	x2, [x1, x4, lsl #3]
6:	add	x1, x1, #8
	subs	x4, x4, #1
	tbz	w4, #31, 7f
	ldr	x2, [x1, #16]
7:	tbnz	x4, #1, 8f
	ldrb	w2, [x1, x4]
8:	cbnz	w4, 5b
	b	9f
	ldr	x2, [x1]
9:	nop
	ldr	x2, [x1]
	ldp	x29, x30, [sp], #16
	ret
end branches

begin vectors
	adrp	x1, area
	add	x1, x1, :lo12:area
	adrp	x2, indices
	add	x2, x2, :lo12:indices
	mov	x5, #4
	ptrue	p0.s, vl4
	ld1w	{z1.s}, p0/z, [x2]
	add	x3, x1, #64
	ld1w	{z0.s}, p0/z, [x1, z1.s, uxtw #2]
	add	x3, x1, #72
	st1w	{z0.s}, p0, [x1, z1.s, uxtw #2]
	add	x3, x3, #8
	ldr	x4, [x3]
	ldr	z2, [x1]
	add	x3, x3, #8
	str	x4, [x3]
	cntb	x4
	incb	x4
	ldr	x6, [x1, x4]
	mov	x4, x1
	dc	zva, x4
	add	x4, x4, #8
	ldr	x6, [x4]
	umov	w4, v1.b[0]
	ldr	x6, [x1]
	fmov	x4, d1
	ldr	x6, [x1, #8]
	mrs	x4, tpidr_el0
	ldr	x6, [x1, #24]
	ret
end vectors
