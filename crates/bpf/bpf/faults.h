/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* Page faults of the target: the first touch of each page, with its thread and instruction. */
#ifndef VARVE_FAULTS_H
#define VARVE_FAULTS_H

#define FAULT_PRESENT_WRITE 3

/* Whether a fault is there only because userfaultfd protects the page: it shows nothing new */
static __noinline int is_guarded(struct settings *g, u64 va)
{
	u64 entry, table = (u64)BPF_CORE_READ(current_task(), mm, pgd);

	for (int level = 5; level > 0; level--) {
		if (level > g->levels)
			continue;
		if (bpf_probe_read_kernel(&entry, 8,
					  (void *)(table + ((va >> (3 + 9 * level)) & 511) * 8)))
			return 0;
		if (!(entry & PTE_PRESENT))
			return 0;
		if (level == 1 || (level <= 3 && entry & PTE_PSE))
			return !!(entry & PTE_GUARDED);
		table = g->direct + (entry & g->frame_mask);
	}
	return 0;
}

static __always_inline int report_fault(struct bpf_raw_tracepoint_args *ctx, struct tracked *t, u32 kernel)
{
	struct pt_regs *registers = (struct pt_regs *)ctx->args[1];
	struct settings *g;
	struct rec_fault *rec;
	u64 ip = 0;
	u32 next;

	/*
	 * An attempt that may not sleep fails, and is made again properly. The helper that reads the
	 * counter holds it at one more than it was.
	 */
	if (kernel && BPF_CORE_READ(current_task(), pagefault_disabled) > 1)
		return 0;
	g = get_settings();
	if (!g)
		return 0;
	if (g->options & OPT_GUARDED && (ctx->args[2] & FAULT_PRESENT_WRITE) == FAULT_PRESENT_WRITE &&
	    is_guarded(g, ctx->args[0]))
		return 0;
	rec = bpf_ringbuf_reserve(&ring, sizeof(*rec), 0);
	if (!rec) {
		drop(DROP_FAULT, 1);
		return 0;
	}
	bpf_probe_read_kernel(&ip, sizeof(ip), &registers->ip);
	/* Before execve says that the program has begun, what it writes there is no more of the memory that the process had */
	next = kernel && t->mm && t->mm != (u64)BPF_CORE_READ(current_task(), mm) ? FAULT_NEXT : 0;
	fill(&rec->r, REC_FAULT, next | bpf_get_smp_processor_id() << 8 | kernel << 7 | (ctx->args[2] & 0x7f));
	rec->ip = ip;
	rec->address = ctx->args[0];
	bpf_ringbuf_submit(rec, wake(g->ring_wake));
	return 0;
}

static __always_inline int fault(struct bpf_raw_tracepoint_args *ctx, u32 kernel)
{
	struct tracked *t = tracked_current();
	u64 began;

	if (!t || !(t->flags & TRACK_FAULTS) || ctx->args[0] >> 56)
		return 0;
	began = report_begins();
	report_fault(ctx, t, kernel);
	return report_ends(began);
}

SEC("raw_tp/page_fault_user")
int fault_user(struct bpf_raw_tracepoint_args *ctx)
{
	return fault(ctx, 0);
}

SEC("raw_tp/page_fault_kernel")
int fault_kernel(struct bpf_raw_tracepoint_args *ctx)
{
	return fault(ctx, 1);
}

#define SIGBUS 7
#define SIGSEGV 11
/* Codes of theirs (siginfo(2)): no mapping, or one that does not permit it, or a key; behind the end of a file */
#define SEGV_MAPERR 1
#define SEGV_ACCERR 2
#define SEGV_PKUERR 4
#define BUS_ADRERR 2

static long see_userfaultfd(struct task_struct *task, struct vm_area_struct *area, u32 *watched)
{
	*watched = bpf_core_field_exists(area->vm_userfaultfd_ctx.ctx) && BPF_CORE_READ(area, vm_userfaultfd_ctx.ctx);
	return 0;
}

/*
 * Whether userfaultfd says by SIGBUS that a page is not there (UFFD_FEATURE_SIGBUS): the program fetches the page and the access is made
 * again. Where somebody is changing the mappings it may be.
 */
static __noinline int may_be_fetched(u64 address)
{
	u32 watched = 1;

	bpf_find_vma(bpf_get_current_task_btf(), address, see_userfaultfd, &watched, 0);
	return watched;
}

/* The thread that faulted gets the signal before it runs on */
SEC("raw_tp/signal_deliver")
int access_refused(struct bpf_raw_tracepoint_args *ctx)
{
	struct kernel_siginfo *info = (struct kernel_siginfo *)ctx->args[1];
	u32 signal = ctx->args[0];
	struct rec_refused *rec;
	struct settings *g;
	struct tracked *t;
	u64 address;
	int code;

	if (signal != SIGSEGV && signal != SIGBUS)
		return 0;
	t = tracked_current();
	g = get_settings();
	if (!t || !g || !(t->flags & TRACK_FAULTS))
		return 0;
	code = BPF_CORE_READ(info, si_code);
	if (signal == SIGBUS ? code != BUS_ADRERR : code != SEGV_MAPERR && code != SEGV_ACCERR && code != SEGV_PKUERR)
		return 0;
	address = (u64)BPF_CORE_READ(info, _sifields._sigfault._addr);
	if (signal == SIGBUS && may_be_fetched(address))
		return 0;
	rec = bpf_ringbuf_reserve(&ring, sizeof(*rec), 0);
	/* Where there is no room the page counts as touched. */
	if (!rec)
		return 0;
	fill(&rec->r, REC_REFUSED, 0);
	rec->address = address;
	bpf_ringbuf_submit(rec, wake(g->ring_wake));
	return 0;
}

#endif
