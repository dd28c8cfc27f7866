/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * What the kernel does within allocator operations: system calls, page faults, and what CPUs' clocks find at work. Which operation runs
 * and from where, running.h knows; it is charged to that.
 */
#ifndef VARVE_OPERATIONS_H
#define VARVE_OPERATIONS_H

struct operation_call {
	u64 entered;
	u64 queued;
	u64 word; /* 0: it is no operation's, and takes memory away */
	u64 bytes;
	u64 wanted; /* where brk is to move the end of the heap */
	u64 address; /* the first argument */
	u64 takes; /* bytes of addresses whose pages it takes away */
	s64 pages; /* that the process had before */
	u32 number;
	u32 advice;
	u32 turn; /* among such calls of the process; 0: another was under way */
	u32 pad;
};

/* System calls of operations under way, and those that take memory away, by thread */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, struct operation_call);
} operation_calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct operation_key);
	__type(value, struct operation_sum);
} operation_sums SEC(".maps");

/* The sum that it is charged to; NULL where there was no room */
static __always_inline struct operation_sum *charge(u32 pid, u64 word, u32 what, u64 ns, u64 queued, u64 bytes)
{
	struct operation_key key = { .word = word, .pid = pid, .what = what };
	struct operation_sum fresh = {}, *sum = bpf_map_lookup_elem(&operation_sums, &key);

	if (!sum) {
		bpf_map_update_elem(&operation_sums, &key, &fresh, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&operation_sums, &key);
		if (!sum) {
			drop(DROP_OPERATION, 1);
			return NULL;
		}
	}
	__sync_fetch_and_add(&sum->count, 1);
	if (ns)
		__sync_fetch_and_add(&sum->ns, ns);
	if (queued)
		__sync_fetch_and_add(&sum->queued, queued);
	if (bytes)
		__sync_fetch_and_add(&sum->bytes, bytes);
	return sum;
}

#define NR_MMAP 9
#define NR_MPROTECT 10
#define NR_MUNMAP 11
#define NR_BRK 12
#define NR_MREMAP 25
#define NR_MADVISE 28

/* Of a process, calls that take memory away: those under way, and from TURN on how many have begun */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u64);
} operation_takes SEC(".maps");

#define TURN (1ull << 32)

static __always_inline u32 advice_empties(u32 advice)
{
	return advice == MADV_DONTNEED || advice == MADV_DONTNEED_LOCKED || advice == MADV_GUARD_INSTALL || advice == MADV_FREE;
}

/* Bytes of addresses whose pages a call takes away; 0: it takes none */
static __always_inline u64 takes_of(u32 number, struct pt_regs *r)
{
	u64 end;

	switch (number) {
	case NR_MUNMAP:
		return r->si;
	case NR_MADVISE:
		return advice_empties(r->dx) ? r->si : 0;
	case NR_MREMAP:
		return r->si > r->dx ? r->si - r->dx : 0;
	case NR_MMAP:
		return r->r10 & MAP_FIXED && !(r->r10 & MAP_FIXED_NOREPLACE) ? r->si : 0;
	case NR_BRK:
		end = BPF_CORE_READ(current_task(), mm, brk);
		return r->di && r->di < end ? end - r->di : 0;
	}
	return 0;
}

/*
 * Pages of the process with contents that are its own: anonymous ones (1), and those in swap (2), so that what is swapped makes no difference.
 * Since 6.2 each CPU holds back less than a batch of a counter; before, other threads do. 0 where this kernel keeps the counters in another way.
 */
static __noinline s64 own_pages(void)
{
	struct task_struct *task = current_task();
	struct mm_struct *mm = BPF_CORE_READ(task, mm);
	struct mm_struct___one_counter *before = (struct mm_struct___one_counter *)mm;
	s64 pages;

	if (bpf_core_field_exists(mm->rss_stat[0].count))
		return BPF_CORE_READ(mm, rss_stat[1].count) + BPF_CORE_READ(mm, rss_stat[2].count);
	if (!bpf_core_field_exists(before->rss_stat.count[0].counter))
		return 0;
	pages = BPF_CORE_READ(before, rss_stat.count[1].counter) + BPF_CORE_READ(before, rss_stat.count[2].counter);
	if (bpf_core_field_exists(task->rss_stat.count[0]))
		pages += (s64)BPF_CORE_READ(task, rss_stat.count[1]) + BPF_CORE_READ(task, rss_stat.count[2]);
	return pages;
}

/* Keeps the most pages that a process had before a call that takes some away */
static __noinline int note_most(u32 pid, s64 pages)
{
	struct operation_key key = { .pid = pid, .what = OPERATION_MOST };
	struct operation_sum fresh = {}, *sum = bpf_map_lookup_elem(&operation_sums, &key);
	u64 bytes = not_negative(pages) * SIZE_4K, before;

	if (!sum) {
		bpf_map_update_elem(&operation_sums, &key, &fresh, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&operation_sums, &key);
		if (!sum) {
			drop(DROP_OPERATION, 1);
			return 0;
		}
	}
	__sync_fetch_and_add(&sum->count, 1);
	for (int i = 0; i < 8; i++) {
		before = *(volatile u64 *)&sum->bytes;
		if (before >= bytes || __sync_val_compare_and_swap(&sum->bytes, before, bytes) == before)
			break;
	}
	return 0;
}

/* A call that takes memory away begins, which is noted by now */
static __always_inline void taking_begins(u32 pid, struct operation_call *call)
{
	u64 none = 0, before, *takes = bpf_map_lookup_elem(&operation_takes, &pid);

	if (!takes) {
		bpf_map_update_elem(&operation_takes, &pid, &none, BPF_NOEXIST);
		takes = bpf_map_lookup_elem(&operation_takes, &pid);
	}
	if (takes) {
		before = __sync_fetch_and_add(takes, TURN + 1);
		call->turn = (u32)before ? 0 : (u32)(before >> 32) + 1;
	}
	call->pages = own_pages();
	note_most(pid, call->pages);
}

/*
 * It ends. What went is charged to its operation where no other such call of the process was under way, so that it went in this one, and without
 * a batch of the counter: so much the CPU may have held back of what went before. What other threads touched meanwhile makes it less.
 */
static __always_inline void taking_ends(u32 pid, struct operation_call *call)
{
	u64 now, *takes = bpf_map_lookup_elem(&operation_takes, &pid);
	struct settings *g = get_settings();
	s64 went = call->pages - own_pages(), most = (call->takes >> 12) + 1;

	if (!takes || !g)
		return;
	now = __sync_fetch_and_add(takes, -1);
	if (!call->turn || (u32)(now >> 32) != call->turn || !call->word || call->word == COUNTING)
		return;
	went -= g->counter_batch;
	if (went > most)
		went = most;
	if (went > 0)
		charge(pid, call->word, call->number == NR_MADVISE ? OPERATION_ADVISED : OPERATION_UNMAPPED, 0, 0, went * SIZE_4K);
}

/* Says that madvise has taken pages away */
static __always_inline void report_emptied(struct operation_call *call)
{
	struct settings *g = get_settings();
	struct rec_emptied *rec;
	u32 how = call->advice == MADV_FREE ? EMPTIED_LATER : 0;

	if (!g)
		return;
	if (call->word && call->word != COUNTING)
		how |= EMPTIED_BY_OPERATION;
	rec = bpf_ringbuf_reserve(&ring, sizeof(*rec), 0);
	if (!rec) {
		drop(DROP_OPERATION, 1);
		return;
	}
	fill(&rec->r, REC_EMPTIED, how);
	rec->address = call->address;
	rec->bytes = call->takes;
	bpf_ringbuf_submit(rec, wake(g->ring_wake));
}

SEC("raw_tp/sys_enter")
int operation_call_enter(struct bpf_raw_tracepoint_args *ctx)
{
	struct pt_regs *registers = (struct pt_regs *)ctx->args[0];
	u32 pid = bpf_get_current_pid_tgid() >> 32, tid;
	struct operation_call call = {}, *kept;
	struct pt_regs r;

	if (!counts_operations(pid) || bpf_probe_read_kernel(&r, sizeof(r), registers))
		return 0;
	if (!find_running(pid, r.sp, &call.word))
		return 0;
	call.number = ctx->args[1];
	call.takes = takes_of(call.number, &r);
	if (!call.word && !call.takes)
		return 0;
	call.address = r.di;
	call.advice = r.dx;
	if (call.number == NR_MMAP || call.number == NR_MUNMAP || call.number == NR_MADVISE || call.number == NR_MPROTECT)
		call.bytes = r.si;
	else if (call.number == NR_MREMAP)
		call.bytes = r.dx;
	else if (call.number == NR_BRK) {
		call.bytes = BPF_CORE_READ(current_task(), mm, brk);
		call.wanted = r.di;
	}
	call.queued = queued_so_far();
	call.entered = bpf_ktime_get_ns();
	tid = bpf_get_current_pid_tgid();
	if (bpf_map_update_elem(&operation_calls, &tid, &call, BPF_ANY)) {
		drop(DROP_OPERATION, 1);
		return 0;
	}
	kept = call.takes ? bpf_map_lookup_elem(&operation_calls, &tid) : NULL;
	if (kept) {
		taking_begins(pid, kept);
		kept->entered = bpf_ktime_get_ns();
	}
	return 0;
}

/* Results from here on are errors (include/linux/err.h) */
#define FIRST_ERROR ((u64)-4095)

SEC("raw_tp/sys_exit")
int operation_call_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32, tid = bpf_get_current_pid_tgid(), failed;
	u64 took, queued, bytes, result = ctx->args[1];
	struct operation_call *call;
	struct operation_sum *sum;

	if (!counts_operations(pid))
		return 0;
	call = bpf_map_lookup_elem(&operation_calls, &tid);
	if (!call)
		return 0;
	took = bpf_ktime_get_ns() - call->entered;
	queued = queued_so_far() - call->queued;
	/* Two clocks */
	if (queued > took)
		queued = took;
	if (call->takes)
		taking_ends(pid, call);
	if (call->takes && call->number == NR_MADVISE && !ctx->args[1])
		report_emptied(call);
	bytes = call->bytes;
	/* It gives the end of the heap, which was before where it could not move it; brk(0) only asks for it */
	if (call->number == NR_BRK) {
		bytes = result > bytes ? result - bytes : bytes - result;
		failed = call->wanted && result != call->wanted;
	} else {
		failed = result >= FIRST_ERROR;
		bytes = failed ? 0 : bytes;
	}
	if (call->word) {
		sum = charge(pid, call->word, call->number, took - queued, queued, bytes);
		if (sum && failed)
			__sync_fetch_and_add(&sum->failed, 1);
	}
	bpf_map_delete_elem(&operation_calls, &tid);
	return 0;
}

#define FAULT_PRESENT 1

/* Whether the clock of a CPU has run: nothing else asks for last page faults */
static volatile u32 clock_runs;

/* The last page fault on each CPU, where it is a first touch by the program's own code, outside of operations */
struct first_touch {
	u64 address;
	u64 ip; /* the instruction that touches it */
	u32 tid; /* 0: it is not */
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct first_touch);
} operation_touch SEC(".maps");

/* The recorder knows whether the allocator has mapped it: what maps memory is reported in the same ring, before it can be touched */
static __always_inline void report_first_touch(u64 address, u32 how)
{
	struct settings *g = get_settings();
	struct rec_first_touch *rec;

	if (!g)
		return;
	rec = bpf_ringbuf_reserve(&ring, sizeof(*rec), 0);
	if (!rec) {
		drop(DROP_OPERATION, 1);
		return;
	}
	fill(&rec->r, REC_FIRST_TOUCH, how);
	rec->address = address;
	bpf_ringbuf_submit(rec, wake(g->ring_wake));
}

static __always_inline int operation_fault(struct bpf_raw_tracepoint_args *ctx, u32 by_program)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32, tid = bpf_get_current_pid_tgid(), zero = 0;
	struct first_touch *touch = NULL;
	struct probed_thread *t;
	struct pt_regs r;
	u64 word;

	if (!counts_operations(pid) || ctx->args[0] >> 56)
		return 0;
	if (clock_runs)
		touch = bpf_map_lookup_elem(&operation_touch, &zero);
	/* The work of this program is no part of a touch */
	if (touch)
		touch->tid = 0;
	if (bpf_probe_read_kernel(&r, sizeof(r), (void *)bpf_task_pt_regs(bpf_get_current_task_btf())))
		return 0;
	t = probe_every ? bpf_map_lookup_elem(&probed_threads, &tid) : NULL;
	if (t)
		t->fault = r.ip;
	if (!find_running(pid, r.sp, &word))
		return 0;
	charge(pid, word, OPERATION_FAULT, 0, 0, 0);
	if (word == COUNTING || ctx->args[2] & FAULT_PRESENT)
		return 0;
	report_first_touch(ctx->args[0], word ? FIRST_TOUCH_IN_OPERATION : by_program ? 0 : FIRST_TOUCH_BY_KERNEL);
	if (word || !by_program || !touch)
		return 0;
	touch->address = ctx->args[0];
	touch->ip = r.ip;
	/* The clock may come in between */
	barrier();
	touch->tid = tid;
	return 0;
}

SEC("raw_tp/page_fault_user")
int operation_fault_user(struct bpf_raw_tracepoint_args *ctx)
{
	return operation_fault(ctx, 1);
}

SEC("raw_tp/page_fault_kernel")
int operation_fault_kernel(struct bpf_raw_tracepoint_args *ctx)
{
	if (BPF_CORE_READ(current_task(), pagefault_disabled) > 1)
		return 0;
	return operation_fault(ctx, 0);
}

/* The calls by which probes come to the kernel where it has them (arch/x86/entry/syscalls/syscall_64.tbl) */
#define NR_URETPROBE 335
#define NR_UPROBE 336

/* Whether the kernel was at work for a probe and not for the program: in a trap that is no page fault, or in a call that is made for that */
static __always_inline u32 works_for_probe(struct pt_regs *r)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct probed_thread *t = probe_every ? bpf_map_lookup_elem(&probed_threads, &tid) : NULL;

	if (!t)
		return 0;
	if (r->orig_ax == NR_URETPROBE || r->orig_ax == NR_UPROBE)
		return 1;
	return (s64)r->orig_ax < 0 && t->fault != r->ip;
}

/* The instruction that says that a loop waits (pause) */
#define PAUSE 0x90f3

/* Whether a thread waits in a loop: it is at that instruction, or has just done it */
static __always_inline u32 is_pausing(u64 ip)
{
	u16 code[2] = {};

	return !bpf_probe_read_user(code, sizeof(code), (void *)(ip - sizeof(u16))) && (code[0] == PAUSE || code[1] == PAUSE);
}

/*
 * Says that the clock found the thread in a first touch. The registers with which it entered the kernel have the number of a system call (orig_ax),
 * which is negative in page faults and interrupts. An interrupt that comes at the same instruction, behind the fault, is taken for it.
 */
static __always_inline void sample_first_touch(struct pt_regs *r)
{
	u32 zero = 0;
	struct first_touch *t;

	if ((s64)r->orig_ax >= 0)
		return;
	t = bpf_map_lookup_elem(&operation_touch, &zero);
	if (t && t->tid == (u32)bpf_get_current_pid_tgid() && t->ip == r->ip)
		report_first_touch(t->address, FIRST_TOUCH_SAMPLED);
}

SEC("perf_event")
int operation_clock(struct bpf_perf_event_data *ctx)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct pt_regs r;
	u64 word;

	if (!clock_runs)
		clock_runs = 1;
	if (!counts_operations(pid))
		return 0;
	if (ctx->regs.cs & 3) {
		if (!find_running(pid, ctx->regs.sp, &word))
			return 0;
		charge(pid, word, OPERATION_CLOCK_USER, 0, 0, 0);
		if (word && word != COUNTING && is_pausing(ctx->regs.ip))
			charge(pid, word, OPERATION_CLOCK_PAUSE, 0, 0, 0);
		return 0;
	}
	if (bpf_probe_read_kernel(&r, sizeof(r), (void *)bpf_task_pt_regs(bpf_get_current_task_btf())))
		return 0;
	if ((r.cs & 3) != 3 || !find_running(pid, r.sp, &word))
		return 0;
	if (works_for_probe(&r))
		word = COUNTING;
	charge(pid, word, OPERATION_CLOCK_KERNEL, 0, 0, 0);
	if (!word)
		sample_first_touch(&r);
	return 0;
}

/* A number may be another process's from now on */
SEC("raw_tp/sched_process_free")
int operation_process_free(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	u32 tgid = BPF_CORE_READ(task, tgid), pid = BPF_CORE_READ(task, pid);

	bpf_map_delete_elem(&operation_calls, &pid);
	probed_thread_ended(tgid, pid);
	if (pid == tgid) {
		bpf_map_delete_elem(&running_places, &tgid);
		bpf_map_delete_elem(&operation_takes, &tgid);
	}
	return 0;
}

/* What another program calls its thread-local memory is not known before it asks for its tables */
SEC("raw_tp/sched_process_exec")
int operation_process_exec(struct bpf_raw_tracepoint_args *ctx)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32;

	bpf_map_delete_elem(&running_places, &pid);
	bpf_map_delete_elem(&operation_takes, &pid);
	probed_program_began(pid);
	return 0;
}

#endif
