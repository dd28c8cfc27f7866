// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* The programs of the recorder. Each can be left out without harm to the others. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "abi.h"
#include "maps.h"
#include "pageflags.h"
#include "entries.h"
#include "walk.h"
/* Loaded first, as some kernels refuse these alone: then no time was lost with the others */
#include "harvest.h"
#include "hooks.h"
#include "exempt.h"
#include "running.h"
#include "calls.h"
#include "requests.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define ESRCH 3
#define EINVAL 22
#define ESTALE 116
#define KERNEL_STACK_BYTES 16384
#define SIGNAL_GROUP_EXIT 4

/* ---- on demand ---- */

struct find_context {
	u64 task;
	u64 first;
	u64 found;
	u32 pid;
};

static long find_step(u32 i, struct find_context *c)
{
	struct task_struct *task = CAST_TASK(c->task);
	u64 next;

	if ((u32)BPF_CORE_READ(task, tgid) == c->pid) {
		c->found = c->task;
		return 1;
	}
	next = (u64)BPF_CORE_READ(task, tasks.next);
	if (!next)
		return 1;
	next -= bpf_core_field_offset(struct task_struct, tasks);
	c->task = next;
	return next == c->first;
}

/*
 * The list of all processes, from the recorder itself on. The kfunc bpf_task_from_pid would be
 * shorter, but is not in 6.1 and not for this type of program until later. The list may change
 * under us, so a failure is tried again.
 */
__noinline u64 find_task(u32 pid)
{
	u64 self = (u64)BPF_CORE_READ(current_task(), group_leader);
	struct find_context c = { .task = self, .first = self, .pid = pid };
	struct tracked *t = bpf_map_lookup_elem(&tracked, &pid);

	struct task_struct *known = CAST_TASK(t ? t->leader : 0);

	if (known && (u32)BPF_CORE_READ(known, tgid) == pid &&
	    (u32)BPF_CORE_READ(known, pid) == pid && BPF_CORE_READ(known, mm))
		return (u64)known;
	for (int i = 0; i < 3; i++) {
		c.task = self;
		bpf_loop(1 << 22, find_step, &c, 0);
		if (c.found)
			break;
	}
	return c.found;
}

struct thread_context {
	u64 node;
	u64 head;
	u64 mm;
};

static long thread_step(u32 i, struct thread_context *c)
{
	struct task_struct *task;

	if (!c->node || c->node == c->head)
		return 1;
	task = CAST_TASK(c->node - bpf_core_field_offset(struct task_struct, thread_node));
	c->mm = (u64)BPF_CORE_READ(task, mm);
	c->node = (u64)BPF_CORE_READ(task, thread_node.next);
	return c->mm != 0;
}

/* The memory of a process; its first thread may have ended before the others */
__noinline u64 mm_of(u64 leader)
{
	struct task_struct *task = CAST_TASK(leader);
	struct signal_struct *signal = BPF_CORE_READ(task, signal);
	struct thread_context c = { .mm = (u64)BPF_CORE_READ(task, mm) };

	if (c.mm)
		return c.mm;
	c.head = (u64)signal + bpf_core_field_offset(struct signal_struct, thread_head);
	c.node = (u64)BPF_CORE_READ(signal, thread_head.next);
	bpf_loop(1 << 16, thread_step, &c, 0);
	return c.mm;
}

#include "others.h"
#include "reach.h"
#include "elsewhere.h"

SEC("syscall")
int walk_process(struct walk_args *a)
{
	struct settings *g = get_settings();
	u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&walk_scratch, &zero);
	u64 task, mm;

	a->error = -EINVAL;
	if (!g || !s)
		return 0;
	task = find_task(a->pid);
	mm = task ? mm_of(task) : 0;
	if (!mm) {
		a->error = -ESRCH;
		return 0;
	}
	if (a->mm_wanted && a->mm_wanted != mm) {
		a->error = -ESTALE;
		return 0;
	}
	prepare(s, g, (u64)BPF_CORE_READ(CAST_MM(mm), pgd));
	s->to_ring = 0;
	s->wants_residents = a->wants_residents;
	s->out_max = a->regions;
	s->most = a->most ? a->most : ~0ull;
	s->cursor = a->start;
	s->end = user_end(g);
	if (a->end && a->end < s->end)
		s->end = a->end;
	walk_range(s);
	a->resume = s->cursor < s->end ? s->cursor : ~0ull;
	a->mm = mm;
	a->first_ended = !BPF_CORE_READ(CAST_TASK(task), mm);
	a->present = s->present;
	a->checks = s->checks;
	a->check_failures = s->check_failures;
	a->table_failures = s->table_failures;
	a->regions = s->out_count;
	a->residents = s->residents;
	a->error = mm_of(task) == mm ? 0 : -ESTALE;
	return 0;
}

#include "calibrate.h"

/* ---- system calls ---- */

/* Notes what the record of a mapping call needs from before the call */
static __noinline int note_pending(u32 op)
{
	struct pending p = { .entered = bpf_ktime_get_ns() };
	u32 tid = bpf_get_current_pid_tgid();

	if (op == OP_BRK)
		p.before = BPF_CORE_READ(current_task(), mm, brk);
	bpf_map_update_elem(&pending, &tid, &p, BPF_ANY);
	return 0;
}

/* What is to be looked at before a call of the current process, of which `t` is known if it is tracked; notes what its end needs */
static __always_inline struct request *request_before(struct call *c, struct tracked *t)
{
	u32 flags = t ? t->flags : TRACK_VANISH;

	if (t && flags & TRACK_MAPPINGS && c->op <= OP_LAST_MAPPING)
		note_pending(c->op);
	if (!(flags & TRACK_VANISH))
		return NULL;
	if (c->op >= OP_OPEN && c->op <= OP_CREAT) {
		begin_open(c);
		return NULL;
	}
	if (c->op == OP_EXIT)
		return t ? request_all(announce_end(t)) : NULL;
	/* Advice of a process that is not tracked concerns others where it takes pages from a file */
	if (!t && c->op == OP_MADVISE && c->args[2] != MADV_COLLAPSE && c->args[2] != MADV_REMOVE)
		return NULL;
	return request_call(c);
}

SEC("raw_tp/sys_enter")
int call_enter(struct bpf_raw_tracepoint_args *ctx)
{
	u32 number = (u32)ctx->args[1] & ~X32_BIT;
	struct request *q;
	struct call c = {};
	struct tracked *t;

	if (number > 511 || !(interesting(number) || may_be_of_memory_file(number)))
		return 0;
	t = tracked_current();
	if (!t && (!reaches_others(number) || !looks_at_pages()))
		return 0;
	if (!decode(&c, ctx->args[0], number))
		return 0;
	if (is_mark(&c))
		return t ? emit_mark(&c) : 0;
	q = request_before(&c, t);
	if (q)
		hand_over(ctx, q, 0, 0);
	return 0;
}

SEC("raw_tp/sys_exit")
int call_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct pt_regs *registers = (struct pt_regs *)ctx->args[0];
	struct call c = {};
	struct tracked *t;
	u64 number = 0;

	if (openings)
		end_open(ctx->args[1]);
	t = tracked_current();
	if (!t || !(t->flags & (TRACK_MAPPINGS | TRACK_VANISH)))
		return 0;
	bpf_probe_read_kernel(&number, sizeof(number), &registers->orig_ax);
	number = (u32)number & ~X32_BIT;
	if (number > 511 || !interesting(number))
		return 0;
	if (!decode(&c, (u64)registers, number))
		return 0;
	if (!memory_files && c.op >= OP_OPEN && c.op <= OP_OPENAT2)
		note_memory_file(ctx->args[1]);
	if (c.op > OP_LAST_MAPPING || !(t->flags & TRACK_MAPPINGS))
		return 0;
	emit_mapping(&c, registers, ctx->args[1], t->flags);
	return 0;
}

#include "locks.h"

/* Before the point of no return of execve, after the strings were copied; 6.10 and later */
SEC("raw_tp/sched_prepare_exec")
int prepare_exec(struct bpf_raw_tracepoint_args *ctx)
{
	struct tracked *t = tracked_current();
	struct request *q;

	if (!t)
		return 0;
	note_peak(t, current_task());
	q = t->flags & TRACK_VANISH ? request_all(CAUSE_EXEC) : NULL;
	if (q)
		hand_over(ctx, q, 0, 0);
	return 0;
}

/* Signals whose default action lets the process live: CHLD CONT STOP TSTP TTIN TTOU URG WINCH */
#define NOT_FATAL (1u << 17 | 1u << 18 | 1u << 19 | 1u << 20 | 1u << 21 | 1u << 22 | 1u << 23 | 1u << 28)
#define SIGKILL 9

SEC("raw_tp/signal_deliver")
int signal_deliver(struct bpf_raw_tracepoint_args *ctx)
{
	u32 signal = ctx->args[0];
	struct k_sigaction *action = (struct k_sigaction *)ctx->args[2];
	struct tracked *t = tracked_current();
	struct request *q;

	if (!t || !(t->flags & TRACK_VANISH))
		return 0;
	if (signal < 32 && NOT_FATAL & 1u << (signal & 31))
		return 0;
	if (signal != SIGKILL && BPF_CORE_READ(action, sa.sa_handler))
		return 0;
	q = request_all(announce_end(t));
	if (q)
		hand_over(ctx, q, 0, 0);
	return 0;
}

/* ---- processes and threads ---- */

SEC("syscall")
int change_flags(struct flag_args *a)
{
	u32 pid = a->pid;
	struct tracked *t = bpf_map_lookup_elem(&tracked, &pid);

	a->done = 0;
	if (a->set & TRACK_MEMORY_FILES)
		memory_files = 1;
	if (!t || t->image != a->image)
		return 0;
	__sync_fetch_and_or(&t->flags, a->set);
	__sync_fetch_and_and(&t->flags, ~a->clear);
	a->done = 1;
	return 0;
}

static __always_inline int report_fork(struct bpf_raw_tracepoint_args *ctx, struct tracked *t)
{
	struct task_struct *child = (struct task_struct *)ctx->args[1];
	struct settings *g = get_settings();
	struct exempt *e = NULL;
	struct rec_fork *rec;
	struct pt_regs r = {};
	u32 pid, tid, parent, flags, inherit = 0;
	u64 stack, mm, now = bpf_ktime_get_ns();

	if (!g)
		return 0;
	parent = bpf_get_current_pid_tgid() >> 32;
	if (!t) {
		e = bpf_map_lookup_elem(&exempt, &parent);
		if (!e)
			return 0;
	}
	pid = BPF_CORE_READ(child, tgid);
	tid = BPF_CORE_READ(child, pid);
	mm = (u64)BPF_CORE_READ(child, mm);
	if (t && pid != parent && !BPF_CORE_READ(child, exit_signal) && mm == (u64)BPF_CORE_READ(current_task(), mm) &&
	    exempts(&t->flags, parent, pid))
		return 0;
	if (t) {
		flags = t->flags;
	} else if (e && pid != parent) {
		/* What an unobserved process makes is its maker's */
		flags = e->flags;
		parent = e->parent;
	} else {
		return 0;
	}
	if (pid == parent) {
		inherit = 1;
	} else if (flags & TRACK_FOLLOW) {
		struct tracked new = {
			.leader = (u64)child,
			.flags = flags & ~TRACK_HANDLER_MADE,
			.image = now,
			.mm = mm,
		};

		inherit = bpf_map_update_elem(&tracked, &pid, &new, BPF_ANY) == 0;
		if (!inherit)
			drop(DROP_TRACK, 1);
	}
	rec = bpf_ringbuf_reserve(&ring, sizeof(*rec), 0);
	if (!rec) {
		drop(DROP_LIFE, 1);
		return 0;
	}
	fill(&rec->r, REC_FORK, 0);
	rec->r.time = now;
	rec->r.pid = parent;
	rec->pid = pid;
	rec->tid = tid;
	rec->mm = mm;
	rec->thread = pid == parent;
	rec->same_mm = mm == (u64)BPF_CORE_READ(current_task(), mm);
	rec->tracked = inherit;
	/* The registers with which the child will start lie at the top of its kernel stack */
	stack = (u64)BPF_CORE_READ(child, stack);
	rec->sp = 0;
	rec->tls = 0;
	if (rec->same_mm &&
	    !bpf_probe_read_kernel(&r, sizeof(r), (void *)(stack + KERNEL_STACK_BYTES - sizeof(r))) &&
	    (r.cs & 3) == 3) {
		rec->sp = r.sp;
		rec->tls = BPF_CORE_READ(child, thread.fsbase);
	}
	rec->own_tid = number_at(child, BPF_CORE_READ(child, thread_pid, level));
	/* A child may have to get probes of its own before it allocates */
	bpf_ringbuf_submit(rec, probe_every && !rec->thread ? BPF_RB_FORCE_WAKEUP : wake(g->ring_wake));
	return 0;
}

SEC("raw_tp/sched_process_fork")
int process_fork(struct bpf_raw_tracepoint_args *ctx)
{
	struct tracked *t = tracked_current();
	u64 began = t ? report_begins() : 0;

	report_fork(ctx, t);
	return report_ends(began);
}

#include "programs.h"
#include "filters.h"

/* The recorder is woken so often at most for programs whose beginning is known without a look at them */
#define WAKE_EVERY_NS 8000000ull
static volatile u64 woken_at;

static __always_inline int report_exec(struct bpf_raw_tracepoint_args *ctx, struct tracked *t)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	struct linux_binprm *program = (struct linux_binprm *)ctx->args[2];
	struct settings *g = get_settings();
	struct rec_exec *rec;
	u64 now = bpf_ktime_get_ns();
	u32 is_known;
	u64 peak;
	s64 bytes;

	if (!t)
		t = end_exemption(task, bpf_get_current_pid_tgid() >> 32, now);
	if (!t || !g)
		return 0;
	t->leader = (u64)task; /* a thread that calls execve becomes the leader */
	t->flags &= ~TRACK_HANDLER_MADE;
	t->image = now;
	t->mm = (u64)BPF_CORE_READ(task, mm);
	peak = t->peak;
	t->peak = 0;
	rec = bpf_ringbuf_reserve(&ring, sizeof(*rec), 0);
	if (!rec) {
		drop(DROP_LIFE, 1);
		return 0;
	}
	describe_program(rec, task, program, g);
	rec->file = name_file(rec->text + FILE_AT, task);
	rec->pad = 0;
	rec->peak = peak;
	rec->max_pages = max_pages(BPF_CORE_READ(task, signal));
	bytes = bpf_probe_read_kernel_str(rec->text, PATH_BYTES, BPF_CORE_READ(program, filename));
	fill(&rec->r, REC_EXEC, bytes > 0 ? bytes - 1 : 0);
	rec->r.time = now;
	rec->mm = (u64)BPF_CORE_READ(task, mm);
	rec->old_tid = ctx->args[1];
	/*
	 * A short-lived program must be looked at before it is gone, unless it will load our library, which reports what it
	 * maps: who wakes a recorder on every exec makes a shell script wait for it.
	 */
	is_known = rec->flags == EXEC_PRELOADS;
	if (is_known && now - woken_at < WAKE_EVERY_NS) {
		bpf_ringbuf_submit(rec, wake(g->ring_wake));
		return 0;
	}
	woken_at = now;
	bpf_ringbuf_submit(rec, BPF_RB_FORCE_WAKEUP);
	return 0;
}

SEC("raw_tp/sched_process_exec")
int process_exec(struct bpf_raw_tracepoint_args *ctx)
{
	struct tracked *t = tracked_current();
	u64 began = t ? report_begins() : 0;

	report_exec(ctx, t);
	return report_ends(began);
}

/* Begins the end of a thread: what of its memory is to be looked at before that is reported, and what is to be reported */
static __always_inline struct request *request_end(struct task_struct *task, struct tracked *t, u32 *ends)
{
	struct signal_struct *signal = BPF_CORE_READ(task, signal);
	u32 tid = bpf_get_current_pid_tgid(), cause = CAUSE_NONE;
	struct settings *g = get_settings();

	if (bpf_map_delete_elem(&announced, &tid) == 0)
		__sync_fetch_and_add(&t->announced, -1);
	bpf_map_delete_elem(&pending, &tid);
	if (g && g->options & OPT_EXIT_HAS_MM && t->flags & TRACK_VANISH && BPF_CORE_READ(task, mm))
		*ends |= ENDS_WITH_MEMORY;
	if (BPF_CORE_READ(signal, live.counter) == 0) {
		if (!__sync_lock_test_and_set(&t->dead, 1))
			*ends |= ENDS_PROCESS;
		note_peak(t, task);
		cause = CAUSE_EXIT;
	} else if (BPF_CORE_READ(signal, group_exec_task)) {
		cause = CAUSE_EXEC;
	}
	return *ends & ENDS_WITH_MEMORY ? request_all(cause) : NULL;
}

/* Reports the end of the current thread */
static __always_inline void report_end(u32 ends)
{
	struct task_struct *task = current_task();
	struct signal_struct *signal = BPF_CORE_READ(task, signal);
	struct tracked *t = tracked_current();
	struct settings *g = get_settings();
	struct rec_exit *rec;

	if (!t || !g)
		return;
	if (ends & ENDS_WITH_MEMORY)
		exit_touches(task, (u64)BPF_CORE_READ(task, mm));
	rec = bpf_ringbuf_reserve(&ring, sizeof(*rec), 0);
	if (!rec) {
		drop(DROP_LIFE, 1);
		return;
	}
	fill(&rec->r, REC_EXIT, !!(ends & ENDS_PROCESS));
	rec->status = BPF_CORE_READ(signal, flags) & SIGNAL_GROUP_EXIT ?
			      BPF_CORE_READ(signal, group_exit_code) :
			      BPF_CORE_READ(task, exit_code);
	rec->pad = 0;
	rec->peak = ends & ENDS_PROCESS ? t->peak : 0;
	rec->max_pages = max_pages(signal);
	bpf_ringbuf_submit(rec, wake(g->ring_wake));
}

SEC("raw_tp/sched_process_exit")
int process_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct tracked *t = tracked_current();
	struct request *q;
	u32 ends = ENDS;
	u64 began;

	if (!t)
		return 0;
	/* Each one: the last of a large process reads all of its memory, and there is no other that it could stand for */
	began = bpf_ktime_get_ns();
	q = request_end((struct task_struct *)ctx->args[0], t, &ends);
	if (q) {
		q->ends = ends;
		hand_over(ctx, q, began, 1);
	}
	report_end(ends);
	return timed(began, 1);
}

#include "look.h"

/* The number of a process may be used again from now on */
SEC("raw_tp/sched_process_free")
int process_free(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	u32 tgid = BPF_CORE_READ(task, tgid);
	struct tracked *t = bpf_map_lookup_elem(&tracked, &tgid);

	if ((u32)BPF_CORE_READ(task, pid) == tgid)
		bpf_map_delete_elem(&exempt, &tgid);
	if (!t || (u32)BPF_CORE_READ(task, pid) != tgid)
		return 0;
	if (t->leader == (u64)task || (t->leader == 0 && t->dead))
		bpf_map_delete_elem(&tracked, &tgid);
	return 0;
}

SEC("raw_tp/task_rename")
int task_rename(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	struct settings *g = get_settings();
	u32 tgid = BPF_CORE_READ(task, tgid);
	struct rec_comm *rec;

	if (!g || !bpf_map_lookup_elem(&tracked, &tgid))
		return 0;
	rec = bpf_ringbuf_reserve(&ring, sizeof(*rec), 0);
	if (!rec) {
		drop(DROP_LIFE, 1);
		return 0;
	}
	fill(&rec->r, REC_COMM, 0);
	rec->r.pid = tgid; /* one thread may name another */
	rec->r.tid = BPF_CORE_READ(task, pid);
	__builtin_memset(rec->name, 0, sizeof(rec->name));
	bpf_probe_read_kernel_str(rec->name, sizeof(rec->name), (void *)ctx->args[1]);
	bpf_ringbuf_submit(rec, wake(g->ring_wake));
	return 0;
}

#include "faults.h"
#include "samples.h"
#include "waits.h"
#include "uprobes.h"
#include "operations.h"
#include "contention.h"
