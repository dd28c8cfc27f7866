/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * What vanishes, without a tracepoint of system calls, for which the kernel sends every call of every process the slow way.
 * Who changes mappings, ends, or reaches into a process's memory asks for the lock of its mappings first. The registers with
 * which the thread entered the kernel say in which call it is.
 */
#ifndef VARVE_LOCKS_H
#define VARVE_LOCKS_H

#define PF_EXITING 4
#define UFFDIO_REGISTER 0xc020aa00
#define UFFDIO_REGISTER_MODE_MISSING 1
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23

/* A cgroup's path came between the two arguments until 6.13 */
struct trace_event_raw_mmap_lock {
	u64 memcg_id;
} __attribute__((preserve_access_index));

struct userfaultfd_ctx {
	struct mm_struct *mm;
} __attribute__((preserve_access_index));

/* Came with the operation, in 6.8 */
struct uffdio_move {
	u64 len;
} __attribute__((preserve_access_index));

static __always_inline int is_for_writing(struct bpf_raw_tracepoint_args *ctx)
{
	u64 writes;

	/* The verifier takes no load from a place that was chosen, and the kernel no program that looks behind the arguments */
	if (bpf_core_field_exists(struct trace_event_raw_mmap_lock, memcg_id))
		asm volatile("%0 = *(u64 *)(%1 + 8)" : "=r"(writes) : "r"(ctx));
	else
		asm volatile("%0 = *(u64 *)(%1 + 16)" : "=r"(writes) : "r"(ctx));
	return !!(u8)writes;
}

/* The call that the current thread is in, and where its registers lie; 0: in none of interest */
__noinline int current_call(struct call *c, u64 *registers)
{
	u64 number = ~0ull, at = 0, pointer = (u64)bpf_task_pt_regs(bpf_get_current_task_btf());
	struct pt_regs *r;

	if (!c || !registers)
		return 0;
	/* As a number: functions that are verified by themselves take no such pointer */
	bpf_probe_read_kernel(&at, sizeof(at), &pointer);
	r = (struct pt_regs *)at;
	bpf_probe_read_kernel(&number, sizeof(number), &r->orig_ax);
	number = (u32)number & ~X32_BIT;
	*registers = at;
	if (number > 511 || !(interesting(number) || may_be_of_memory_file(number)))
		return 0;
	return decode(c, at, number);
}

/* Whoever writes to the file that clears the bits of a tracked process */
static __noinline int count_clearing(u32 fd)
{
	u64 file = file_of(fd);

	if (!file || !clears_bits(file))
		return 0;
	drop(DROP_VANISH_WALKS, 1);
	return 1;
}

/* Says that the kernel is about to map a range, and that no fault will show its pages */
static __noinline int populates(u64 mm, u64 start, u64 bytes)
{
	struct settings *g = get_settings();
	struct rec_touch *rec;

	if (!g)
		return 0;
	rec = bpf_ringbuf_reserve(&ring, sizeof(*rec), 0);
	if (!rec) {
		drop(DROP_VANISH_WALKS, 1);
		return 0;
	}
	__builtin_memset(rec, 0, sizeof(*rec));
	fill(&rec->r, REC_VANISH, CAUSE_POPULATE);
	rec->mm = mm;
	rec->start = start & ~(SIZE_4K - 1);
	rec->end = (start + bytes + SIZE_4K - 1) & ~(SIZE_4K - 1);
	bpf_ringbuf_submit(rec, wake(g->ring_wake));
	return 0;
}

/*
 * A thread that ends asks for the lock as it lets go of the memory (exit_mm). Where sched_process_exit comes after that, this is
 * the place to read it: `live` no longer counts the thread, and what the kernel writes for it is written.
 */
static __always_inline struct request *thread_ends(struct task_struct *task, struct tracked *t)
{
	struct signal_struct *signal = BPF_CORE_READ(task, signal);
	struct settings *g = get_settings();

	if (!g || g->options & OPT_EXIT_HAS_MM || BPF_CORE_READ(signal, live.counter) != 0)
		return NULL;
	note_peak(t, task);
	return request_all(CAUSE_EXIT);
}

/* What takes pages from another process than the caller, and asks for a lock of that one's mappings */
static __always_inline int is_on_others(u32 op)
{
	return op == OP_MADVISE || op == OP_PROCESS_MADVISE || op == OP_PROCESS_MRELEASE;
}

/*
 * Says that memory is registered into which UFFDIO_MOVE can bring pages. That asks for the lock of one mapping, which has no
 * tracepoint, so that the loader attaches the next program from now on.
 */
static __noinline int registers_missing(struct call *c)
{
	struct record *rec;
	u64 mode = 0;

	if (!c || (u32)c->args[1] != UFFDIO_REGISTER || !bpf_core_type_exists(struct uffdio_move))
		return 0;
	/* Behind the range; the kernel has read it just now */
	bpf_probe_read_user(&mode, sizeof(mode), (void *)(c->args[2] + 16));
	if (!(mode & UFFDIO_REGISTER_MODE_MISSING))
		return 0;
	rec = bpf_ringbuf_reserve(&ring, sizeof(*rec), 0);
	if (!rec) {
		drop(DROP_VANISH_WALKS, 1);
		return 0;
	}
	fill(rec, REC_REGISTRATION, 0);
	bpf_ringbuf_submit(rec, BPF_RB_FORCE_WAKEUP);
	return 0;
}

/* Pages that come by UFFDIO_MOVE and go so within an interval leave no trace: they are a loss */
SEC("raw_tp/sys_enter")
int move_asked(struct bpf_raw_tracepoint_args *ctx)
{
	u32 number = (u32)ctx->args[1] & ~X32_BIT;
	struct userfaultfd_ctx *user;
	struct call c = {};
	u64 file;

	if (number > 511 || !(ops64[number] == OP_IOCTL || ops32[number] == OP_IOCTL) ||
	    decode(&c, ctx->args[0], number) != OP_IOCTL || (u32)c.args[1] != UFFDIO_MOVE)
		return 0;
	file = file_of(c.args[0]);
	user = file ? (struct userfaultfd_ctx *)BPF_CORE_READ((struct file *)(unsigned long)file, private_data) : NULL;
	if (user && tracked_owner((u64)BPF_CORE_READ(user, mm)))
		drop(DROP_VANISH_WALKS, 1);
	return 0;
}

/* The call of a thread that asks for the lock of mappings, if its pages are to be looked at. What takes no walk is done here. */
static __noinline u32 call_of_lock(struct call *c, u64 mm, u32 writes)
{
	u64 own = (u64)BPF_CORE_READ(current_task(), mm), registers = 0;
	struct tracked *t = tracked_current();
	struct settings *g = get_settings();

	if (!c || !g || !current_call(c, &registers) || (c->op >= OP_OPEN && c->op <= OP_CREAT))
		return 0;
	if (c->op >= OP_READ && c->op <= OP_PREADV && count_clearing(c->args[0]))
		return 0;
	if (!t)
		return is_on_others(c->op) ? c->op : 0;
	if (is_mark(c)) {
		emit_mark(c);
		return 0;
	}
	if (mm == own && writes && t->flags & TRACK_MAPPINGS && c->op <= OP_LAST_MAPPING)
		note_pending(c->op);
	if (!(t->flags & TRACK_VANISH) || c->op == OP_EXIT)
		return 0;
	/*
	 * execve asks for the lock of the old memory when it has read the arguments, to read; the faults of reading them do too.
	 * Of the new memory, which it prepares later, the code is not known yet.
	 */
	if (c->op == OP_EXEC || c->op == OP_EXECAT)
		return mm == own && !writes && !(g->options & OPT_PREPARE_EXEC) &&
				       BPF_CORE_READ(CAST_MM(mm), start_code) ?
			       OP_EXEC :
			       0;
	/* What it takes is gone at the next boundary, or in a huge page that begins as accessed */
	if (c->op == OP_MADVISE && c->args[2] == MADV_COLLAPSE)
		return 0;
	if (c->op == OP_IOCTL) {
		registers_missing(c);
		return 0;
	}
	if (c->op == OP_MADVISE && (c->args[2] == MADV_POPULATE_READ || c->args[2] == MADV_POPULATE_WRITE)) {
		populates(mm, c->args[0], c->args[1]);
		return 0;
	}
	/* Mappings that are made are populated under another lock */
	if (c->op <= OP_LAST_MAPPING && (mm != own || !writes))
		return 0;
	return c->op;
}

/* What is to be looked at before the lock is given */
static __always_inline struct request *request_lock(struct bpf_raw_tracepoint_args *ctx, struct tracked *t)
{
	struct task_struct *task = current_task();
	struct call c = {};
	u32 op;

	if (t && !(t->flags & (TRACK_VANISH | TRACK_MAPPINGS)))
		return NULL;
	if (t && BPF_CORE_READ(task, flags) & PF_EXITING) {
		if (ctx->args[0] != (u64)BPF_CORE_READ(task, mm) || !(t->flags & TRACK_VANISH))
			return NULL;
		return thread_ends(task, t);
	}
	op = call_of_lock(&c, ctx->args[0], is_for_writing(ctx));
	if (!op)
		return NULL;
	return op == OP_EXEC ? request_all(CAUSE_EXEC) : request_call(&c);
}

SEC("raw_tp/mmap_lock_start_locking")
int lock_asked(struct bpf_raw_tracepoint_args *ctx)
{
	struct tracked *t = tracked_current();
	struct request *q;
	u64 began;

	if (!t && (ctx->args[0] == (u64)BPF_CORE_READ(current_task(), mm) || !looks_at_pages()))
		return 0;
	began = t ? report_begins() : 0;
	q = request_lock(ctx, t);
	if (q)
		hand_over(ctx, q, began, TIMED_EVERY);
	return report_ends(began);
}

/* ---- what a call on mappings has made of them ---- */

/* The pending call of the current thread, if it is tracked and its mappings are to be reported */
static __always_inline struct pending *pending_call(void)
{
	struct tracked *t = tracked_current();
	u32 tid = bpf_get_current_pid_tgid();

	return t && t->flags & TRACK_MAPPINGS ? bpf_map_lookup_elem(&pending, &tid) : NULL;
}

SEC("raw_tp/vm_unmapped_area")
int area_found(struct bpf_raw_tracepoint_args *ctx)
{
	struct pending *p = pending_call();

	if (p && (s64)ctx->args[0] > 0)
		p->area = ctx->args[0];
	return 0;
}

SEC("raw_tp/ma_write")
int tree_written(struct bpf_raw_tracepoint_args *ctx)
{
	struct ma_state *state = (struct ma_state *)ctx->args[1];
	struct pending *p = pending_call();
	u64 tree, began;

	if (!p || p->high || !ctx->args[3])
		return 0;
	began = report_begins();
	tree = (u64)BPF_CORE_READ(current_task(), mm) + bpf_core_field_offset(struct mm_struct, mm_mt);
	if ((u64)BPF_CORE_READ(state, tree) == tree) {
		p->low = BPF_CORE_READ(state, index);
		p->high = BPF_CORE_READ(state, last);
	}
	return report_ends(began);
}

/*
 * Where a mapping went. The range is that of the mapping that it became part of, if it did. Then it lies where the kernel found
 * room; of an aligned one the room is larger, and mappings are made from high addresses to low ones.
 */
static __always_inline u64 placed_at(struct pending *p, u64 hint, u64 bytes)
{
	bytes = (bytes + SIZE_4K - 1) & ~(SIZE_4K - 1);
	if (p->high + 1 - p->low == bytes)
		return p->low;
	if (p->area >= p->low && p->area + bytes <= p->high + 1)
		return p->area;
	if (!p->area && hint >= p->low && hint + bytes <= p->high + 1)
		return hint & ~(SIZE_4K - 1);
	return p->low;
}

#define FAILED -12

/* What the call is going to return, but for errors, of which there is one */
static __always_inline s64 result_of(struct call *c, struct pending *p)
{
	switch (c->op) {
	case OP_MMAP:
		if (!p->high)
			return FAILED;
		return c->args[3] & (MAP_FIXED | MAP_FIXED_NOREPLACE) ? c->args[0] :
									placed_at(p, c->args[0], c->args[1]);
	case OP_SHMAT:
		return p->high ? p->low : FAILED;
	case OP_MREMAP:
		if (c->args[3] & MREMAP_FIXED)
			return p->high ? c->args[4] : FAILED;
		if (c->args[2] > c->args[1] && !p->high)
			return FAILED;
		return p->area ? placed_at(p, 0, c->args[2]) : c->args[0];
	case OP_BRK:
		return BPF_CORE_READ(current_task(), mm, brk);
	}
	return 0;
}

SEC("raw_tp/mmap_lock_released")
int lock_released(struct bpf_raw_tracepoint_args *ctx)
{
	struct pending *p = pending_call();
	struct tracked *t = tracked_current();
	struct call c = {};
	u64 registers = 0, began;

	if (!p || !t || ctx->args[0] != (u64)BPF_CORE_READ(current_task(), mm))
		return 0;
	began = report_begins();
	if (current_call(&c, &registers) && c.op <= OP_LAST_MAPPING)
		emit_mapping(&c, (void *)registers, result_of(&c, p), t->flags);
	return report_ends(began);
}

#endif
