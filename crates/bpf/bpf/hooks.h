/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* Reading the bits of pages just before they go */
#ifndef VARVE_HOOKS_H
#define VARVE_HOOKS_H

#define CAST_TASK(x) ((struct task_struct *)(unsigned long)(x))
#define CAST_MM(x) ((struct mm_struct *)(unsigned long)(x))

static __always_inline struct task_struct *current_task(void)
{
	return (struct task_struct *)bpf_get_current_task();
}

static __always_inline struct tracked *tracked_current(void)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;

	return bpf_map_lookup_elem(&tracked, &tgid);
}

static __always_inline void fill(struct record *r, u32 kind, u32 aux)
{
	u64 id = bpf_get_current_pid_tgid();

	r->kind = kind;
	r->aux = aux;
	r->time = bpf_ktime_get_ns();
	r->pid = id >> 32;
	r->tid = id;
}

/* A hook may interrupt another one on the same CPU: each takes a scratch of its own */
static __always_inline struct scratch *take_scratch(void)
{
	for (u32 slot = 0; slot < SLOTS; slot++) {
		u32 key = slot;
		struct scratch *s = bpf_map_lookup_elem(&hook_scratch, &key);

		if (s && !__sync_lock_test_and_set(&s->busy, 1))
			return s;
	}
	return 0;
}

/* Whether nothing is left of a range. A move leaves all elsewhere, and some advice takes the bits alone. */
static __always_inline int takes_away(u32 cause)
{
	return cause == CAUSE_UNMAP || cause == CAUSE_OVERMAP || cause == CAUSE_BRK || cause == CAUSE_EXEC ||
	       cause == CAUSE_EXIT || cause == CAUSE_ADVISE_AWAY;
}

/*
 * Sends the touched pages of [start, end) of the address space to the ring. `owner` is the process whose
 * memory it is; 0: the current one. With CAUSE_KERNEL_TOUCH all pages that are there count as touched.
 */
__noinline int vanish(u64 mm, u32 cause, u64 start, u64 end, u32 owner)
{
	struct settings *g = get_settings();
	struct scratch *s;
	u64 limit;

	if (!g || !mm)
		return 0;
	start &= ~(SIZE_4K - 1);
	end = (end + SIZE_4K - 1) & ~(SIZE_4K - 1);
	limit = user_end(g);
	if (end > limit)
		end = limit;
	if (start >= end)
		return 0;
	s = take_scratch();
	if (!s) {
		drop(DROP_VANISH_WALKS, 1);
		return 0;
	}
	/* Asked for once more, rather than kept on the stack */
	g = get_settings();
	if (!g) {
		s->busy = 0;
		return 0;
	}
	prepare(s, g, (u64)BPF_CORE_READ(CAST_MM(mm), pgd));
	s->to_ring = 1;
	s->reached = cause == CAUSE_KERNEL_TOUCH;
	s->cursor = start;
	s->end = end;
	s->wants_residents = s->says_ranges = s->options & OPT_RANGES && takes_away(cause);
	s->batch.start = start;
	fill(&s->batch.r, REC_VANISH, cause);
	s->batch.mm = mm;
	if (owner && owner != s->batch.r.pid) {
		s->batch.r.pid = owner;
		s->batch.r.aux = cause | CAUSE_BY_OTHERS;
	}
	walk_range(s);
	if (s->says_ranges && s->cursor >= s->end && !s->table_failures)
		s->batch.end = s->end;
	flush_batch(s);
	if (s->cursor < s->end)
		drop(DROP_VANISH_WALKS, 1);
	if (s->table_failures)
		drop(DROP_VANISH_WALKS, s->table_failures);
	if (s->check_failures)
		drop(DROP_VANISH_PAGES, s->check_failures);
	s->busy = 0;
	return 0;
}

struct rec_touch {
	struct record r;
	u64 mm;
	u64 start;
	u64 end;
	u64 count;
	struct vanish_entry entry;
};

/* Says that the kernel is about to access the pages of two addresses in one region, or of one given twice */
static __noinline int kernel_touches(u64 mm, u64 address, u64 other)
{
	struct settings *g = get_settings();
	struct rec_touch *rec;
	u32 word = (address >> 18) & 7;

	if (!g || !mm || !address || address >> 56)
		return 0;
	rec = bpf_ringbuf_reserve(&ring, sizeof(*rec), 0);
	if (!rec) {
		drop(DROP_VANISH_PAGES, 1 + (address >> 12 != other >> 12));
		return 0;
	}
	fill(&rec->r, REC_VANISH, CAUSE_KERNEL_TOUCH);
	rec->mm = mm;
	rec->start = rec->end = 0;
	rec->count = 1;
	rec->entry.base = address & ~(SIZE_2M - 1);
	__builtin_memset(rec->entry.pages, 0, sizeof(rec->entry.pages));
	rec->entry.pages[word] = 1ull << ((address >> 12) & 63);
	word = (other >> 18) & 7;
	rec->entry.pages[word] |= 1ull << ((other >> 12) & 63);
	bpf_ringbuf_submit(rec, wake(g->ring_wake));
	return 0;
}

/* Says that the kernel is about to access the page of an address */
static __always_inline void kernel_touch(u64 mm, u64 address)
{
	kernel_touches(mm, address, address);
}

/*
 * A vfork child lives in the memory of its parent, which stays when the child goes. mm_users would
 * be no good test: anyone who looks at the process holds a reference.
 */
static __always_inline int borrowed_mm(struct task_struct *task, u64 mm)
{
	struct task_struct *parent = BPF_CORE_READ(task, real_parent);

	return (u64)BPF_CORE_READ(parent, mm) == mm &&
	       BPF_CORE_READ(parent, tgid) != BPF_CORE_READ(task, tgid);
}

static __always_inline void vanish_all(u32 cause)
{
	struct task_struct *task = current_task();
	u64 mm = (u64)BPF_CORE_READ(task, mm);

	if (mm && !borrowed_mm(task, mm))
		vanish(mm, cause, 0, ~0ull >> 1, 0);
}

/* What percpu_counter_read_positive and get_mm_counter make of a counter */
static __always_inline u64 not_negative(s64 count)
{
	return count > 0 ? count : 0;
}

/*
 * The most pages of some memory that were resident at once, as the kernel counts them for getrusage (get_mm_hiwater_rss): the mark
 * that it sets before pages go, or what is resident now, which is the sum of the counters of file pages (0), anonymous pages (1)
 * and pages of shared memory (3). 0 where this kernel keeps the counters in another way.
 */
static __noinline u64 peak_of(u64 at)
{
	struct mm_struct___one_counter *before = (struct mm_struct___one_counter *)(unsigned long)at;
	struct mm_struct *mm = CAST_MM(at);
	u64 now, mark;

	if (!at || !bpf_core_field_exists(mm->hiwater_rss))
		return 0;
	if (bpf_core_field_exists(mm->rss_stat[0].count))
		now = not_negative(BPF_CORE_READ(mm, rss_stat[0].count)) + not_negative(BPF_CORE_READ(mm, rss_stat[1].count)) +
		      not_negative(BPF_CORE_READ(mm, rss_stat[3].count));
	else if (bpf_core_field_exists(before->rss_stat.count[0].counter))
		now = not_negative(BPF_CORE_READ(before, rss_stat.count[0].counter)) +
		      not_negative(BPF_CORE_READ(before, rss_stat.count[1].counter)) +
		      not_negative(BPF_CORE_READ(before, rss_stat.count[3].counter));
	else
		return 0;
	mark = BPF_CORE_READ(mm, hiwater_rss);
	return mark > now ? mark : now;
}

/* Keeps the peak of the memory of the calling process, whose program ends: not of one that a vfork child has from its parent */
static __always_inline void note_peak(struct tracked *t, struct task_struct *task)
{
	u64 mm = (u64)BPF_CORE_READ(task, mm), peak;

	if (!mm || borrowed_mm(task, mm))
		return;
	peak = peak_of(mm);
	if (peak > t->peak)
		t->peak = peak;
}

static __always_inline u64 max_pages(struct signal_struct *signal)
{
	return bpf_core_field_exists(signal->maxrss) ? BPF_CORE_READ(signal, maxrss) : 0;
}

static __always_inline void exit_touches(struct task_struct *task, u64 mm)
{
	/* mm_release: clears the thread id if anyone is left to see it, walks the futex list */
	u64 robust = (u64)BPF_CORE_READ(task, robust_list), id = 0;

	if (BPF_CORE_READ(CAST_MM(mm), mm_users.counter) > 1)
		id = (u64)BPF_CORE_READ(task, clear_child_tid);
	/* Thread libraries keep both together; thousands of threads may end at once. */
	if (id && robust && !((id ^ robust) >> 21)) {
		kernel_touches(mm, id, robust);
		return;
	}
	kernel_touch(mm, id);
	kernel_touch(mm, robust);
}

/* No reason to look at anything */
#define CAUSE_NONE 0xffffffffu

/*
 * On kernels where sched_process_exit comes too late to see the memory: each thread says when it
 * reached its end (exit, exit_group, a fatal signal), after which it runs no more user code. The
 * last to say so has the memory looked at, for the cause that is returned. Threads that have left `live` already but not yet passed
 * sched_process_exit can make this too early as well, never too late.
 */
static __always_inline u32 announce_end(struct tracked *t)
{
	struct settings *g = get_settings();
	struct task_struct *task = current_task();
	struct signal_struct *signal = BPF_CORE_READ(task, signal);
	u32 tid = bpf_get_current_pid_tgid();
	u8 one = 1;
	s32 live, count;

	if (!g || g->options & OPT_EXIT_HAS_MM)
		return CAUSE_NONE;
	if (bpf_map_update_elem(&announced, &tid, &one, BPF_NOEXIST) == 0)
		__sync_fetch_and_add(&t->announced, 1);
	exit_touches(task, (u64)BPF_CORE_READ(task, mm));
	if (BPF_CORE_READ(signal, group_exec_task))
		return CAUSE_EXEC;
	live = BPF_CORE_READ(signal, live.counter);
	count = *(volatile u32 *)&t->announced;
	return live - count <= 0 ? CAUSE_EXIT : CAUSE_NONE;
}

/* What execve reads of the old memory after its hook: the strings, where the hook is too early */
struct string_context {
	u64 mm;
	u64 vector;
	u32 wide; /* 8, or 4 in a 32-bit process */
};

static long touch_string(u32 i, struct string_context *c)
{
	u64 pointer = 0;

	if (bpf_probe_read_user(&pointer, c->wide == 4 ? 4 : 8, (void *)(c->vector + (u64)i * c->wide)))
		return 1;
	kernel_touch(c->mm, c->vector + (u64)i * c->wide);
	if (!pointer)
		return 1;
	kernel_touch(c->mm, pointer);
	return 0;
}

static __always_inline void exec_hook(u64 path, u64 argv, u64 envp, u32 wide)
{
	struct settings *g = get_settings();
	struct task_struct *task = current_task();
	u64 mm = (u64)BPF_CORE_READ(task, mm);
	struct string_context c = { .mm = mm, .vector = argv, .wide = wide };

	if (!g || g->options & OPT_PREPARE_EXEC)
		return;
	vanish_all(CAUSE_EXEC);
	kernel_touch(mm, path);
	bpf_loop(512, touch_string, &c, 0);
	c.vector = envp;
	bpf_loop(512, touch_string, &c, 0);
}

#define MADV_DONTNEED 4
#define MADV_FREE 8
#define MADV_REMOVE 9
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#define MADV_DONTNEED_LOCKED 24
#define MADV_COLLAPSE 25
#define MADV_GUARD_INSTALL 102
#define UFFDIO_MOVE 0xc028aa05

static __always_inline int advice_drops(u32 advice)
{
	return advice == MADV_DONTNEED || advice == MADV_FREE || advice == MADV_REMOVE ||
	       advice == MADV_COLD || advice == MADV_PAGEOUT || advice == MADV_DONTNEED_LOCKED ||
	       advice == MADV_GUARD_INSTALL;
}

/* fallocate by its old names: FS_IOC_UNRESVSP, FS_IOC_UNRESVSP64 and FS_IOC_ZERO_RANGE, whatever the size of their argument */
static __always_inline int ioctl_cuts(u32 command)
{
	u32 name = command & 0xffff;

	return name == ('X' << 8 | 41) || name == ('X' << 8 | 43) || name == ('X' << 8 | 57);
}

#define MAP_FIXED 0x10
#define MAP_FIXED_NOREPLACE 0x100000
#define MREMAP_FIXED 2
#define SHM_REMAP 040000
#define FALLOCATE_DROPS (2 | 8 | 16 | 32) /* punch, collapse, zero, insert */

/* The beginning of struct uffdio_move */
struct move {
	u64 to;
	u64 from;
	u64 bytes;
};

struct call {
	u64 args[6];
	u32 op;
	u32 wide;
};

__noinline int vanish_call(struct call *c)
{
	struct task_struct *task = current_task();
	u64 mm = (u64)BPF_CORE_READ(task, mm), end;
	struct move move;

	if (!c || !mm)
		return 0;
	switch (c->op) {
	case OP_MUNMAP:
		return vanish(mm, CAUSE_UNMAP, c->args[0], c->args[0] + c->args[1], 0);
	case OP_MREMAP:
		vanish(mm, CAUSE_REMAP, c->args[0], c->args[0] + c->args[1], 0);
		if (c->args[3] & MREMAP_FIXED)
			vanish(mm, CAUSE_OVERMAP, c->args[4], c->args[4] + c->args[2], 0);
		return 0;
	case OP_REMAP_FILE:
		return vanish(mm, CAUSE_OVERMAP, c->args[0], c->args[0] + c->args[1], 0);
	case OP_MMAP:
		if (c->args[3] & MAP_FIXED && !(c->args[3] & MAP_FIXED_NOREPLACE))
			vanish(mm, CAUSE_OVERMAP, c->args[0], c->args[0] + c->args[1], 0);
		return 0;
	case OP_BRK:
		end = BPF_CORE_READ(CAST_MM(mm), brk);
		if (c->args[0] && c->args[0] < end)
			vanish(mm, CAUSE_BRK, c->args[0] + SIZE_4K - 1, end, 0);
		return 0;
	case OP_MADVISE:
		if (advice_drops(c->args[2]))
			vanish(mm, c->args[2] == MADV_DONTNEED ? CAUSE_ADVISE_AWAY : CAUSE_ADVISE, c->args[0],
			       c->args[0] + c->args[1], 0);
		return 0;
	case OP_SHMAT:
		/* How long the segment is the call does not say */
		if (c->args[2] & SHM_REMAP)
			vanish(mm, CAUSE_SHMDT, c->args[1] & ~(SIZE_4K - 1), ~0ull >> 1, 0);
		return 0;
	case OP_IOCTL:
		if (ioctl_cuts(c->args[1]))
			drop(DROP_VANISH_WALKS, 1);
		if ((u32)c->args[1] != UFFDIO_MOVE)
			return 0;
		/* Where the arguments are not in memory yet, the call will bring them */
		if (bpf_probe_read_user(&move, sizeof(move), (void *)c->args[2]))
			return vanish(mm, CAUSE_REMAP, 0, ~0ull >> 1, 0);
		return vanish(mm, CAUSE_REMAP, move.from, move.from + move.bytes, 0);
	case OP_SHMDT:
		return vanish(mm, CAUSE_SHMDT, 0, ~0ull >> 1, 0);
	}
	return 0;
}

/* Whether a call may take pages: most of those that change mappings do not */
static __always_inline int may_take(struct call *c)
{
	switch (c->op) {
	case OP_MMAP:
		return c->args[3] & MAP_FIXED && !(c->args[3] & MAP_FIXED_NOREPLACE);
	case OP_BRK:
		return c->args[0] && c->args[0] < BPF_CORE_READ(current_task(), mm, brk);
	case OP_MADVISE:
		return advice_drops(c->args[2]) || c->args[2] == MADV_COLLAPSE;
	case OP_SHMAT:
		return !!(c->args[2] & SHM_REMAP);
	case OP_IOCTL:
		return ioctl_cuts(c->args[1]) || (u32)c->args[1] == UFFDIO_MOVE;
	}
	return 1;
}

#endif
