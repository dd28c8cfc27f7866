/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * Which allocator operation runs on a thread: the preload library says it in the thread's own memory, or programs at the allocator's
 * functions note it.
 */
#ifndef VARVE_RUNNING_H
#define VARVE_RUNNING_H

/* Where struct running of a process's threads is, from their thread pointer on */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, s64);
} running_places SEC(".maps");

/* In the thread's own memory */
struct running {
	u64 word;
	u64 stack;
};

/* Processes whose allocator's functions are probed */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct probed_process);
} probed SEC(".maps");

/* What a thread of theirs does */
struct probed_thread {
	u64 word; /* what runs, and from where; 0: nothing */
	u64 stack; /* the stack pointer at its beginning, where its return address is */
	u64 began;
	u64 queued; /* how long it had been ready to run without a CPU by then */
	u64 requested;
	u64 stores; /* where the result will be stored */
	u64 old; /* the block that goes */
	struct probed_block gone;
	u64 announced; /* an operator that is about to call the function that does its work */
	u64 announced_at;
	u64 fault; /* the instruction of the last page fault */
	u32 is_known; /* `gone` is */
	u32 timed;
	u32 returns; /* it has probes at instructions that return */
	u32 steps;
	u64 image; /* of the process that counts it among its threads */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct probed_thread);
} probed_threads SEC(".maps");

/* One operation in so many is timed; 0: no process is probed */
static volatile u32 probe_every;
/* What probes take of the time that is measured; where the first instruction is stepped over */
static volatile u32 probe_within, probe_within_steps;

/* In place of an operation: it is being counted (COUNTING of preload-abi) */
#define COUNTING (31ull << 47)
#define SITE_MASK ((1ull << 47) - 1)

/* What runs on the current thread, whose stack pointer is given; 0: no operation */
static __always_inline u64 running_operation(s64 place, u64 sp)
{
	struct task_struct *task = current_task();
	struct running r = {};
	u64 at = BPF_CORE_READ(task, thread.fsbase) + place;

	if (bpf_probe_read_user(&r, sizeof(r), (void *)at))
		return 0;
	/* It was left without an end, by an exception or a jump */
	if (sp >= r.stack)
		return 0;
	return r.word;
}

/* Where functions return to whose end is probed (uprobe_get_trampoline_vaddr of kernel/events/uprobes.c); 0: nowhere */
static __always_inline u64 probe_trampoline(void)
{
	struct mm_struct *mm = BPF_CORE_READ(current_task(), mm);

	if (!bpf_core_field_exists(struct mm_struct, uprobes_state) || !bpf_core_field_exists(struct xol_area, vaddr))
		return 0;
	return BPF_CORE_READ(mm, uprobes_state.xol_area, vaddr);
}

/*
 * Whether what the thread has begun still runs. Where it was left by an exception or a jump the stack pointer is above its return
 * address, or something else was written over that since.
 */
static __always_inline u32 still_runs(struct probed_thread *t, u64 sp)
{
	u64 back = 0;

	if (!t->word || sp > t->stack || bpf_probe_read_user(&back, sizeof(back), (void *)t->stack))
		return 0;
	return back == probe_trampoline() || (t->returns && (back & SITE_MASK) == (t->word & SITE_MASK));
}

/* Whether allocator operations of the process are counted */
static __always_inline u32 counts_operations(u32 pid)
{
	return bpf_map_lookup_elem(&running_places, &pid) || (probe_every && bpf_map_lookup_elem(&probed, &pid));
}

/* The same, and which of them runs on the current thread */
static __always_inline u32 find_running(u32 pid, u64 sp, u64 *word)
{
	s64 *place = bpf_map_lookup_elem(&running_places, &pid);
	u32 tid = bpf_get_current_pid_tgid();
	struct probed_thread *t;

	*word = 0;
	if (place) {
		*word = running_operation(*place, sp);
		return 1;
	}
	if (!probe_every || !bpf_map_lookup_elem(&probed, &pid))
		return 0;
	t = bpf_map_lookup_elem(&probed_threads, &tid);
	if (t && still_runs(t, sp))
		*word = t->word;
	return 1;
}

#endif
