/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* Which allocator operation runs on a thread: the preload library says it in the thread's own memory. */
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

/* In place of an operation: the library is at work on its tables (COUNTING of preload-abi) */
#define COUNTING (31ull << 47)

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

#endif
