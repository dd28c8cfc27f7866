/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * How long allocator operations wait for the lock of their process's mappings (mmap_lock). The lock's own word says whether it is free as a
 * thread asks for it: who finds it free is not looked at again, and no time has to be called short or long.
 */
#ifndef VARVE_CONTENTION_H
#define VARVE_CONTENTION_H

/* kernel/locking/rwsem.c, since 5.3 */
#define RWSEM_WRITER 1ull
#define RWSEM_HANDOFF 4ull
#define RWSEM_READ_FAILED (1ull << 63)
#define RWSEM_OWNER_FLAGS 7ull

struct lock_wait {
	u64 word;
	u64 mm;
	u64 began;
	u64 queued;
	u64 switches; /* how often the thread had gone to sleep by then */
	u64 by_others;
};

/* Of threads that wait */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, struct lock_wait);
} operation_waits SEC(".maps");

/* Whether who asks has to wait */
static __always_inline u32 is_taken(struct mm_struct *mm, u32 writes)
{
	u64 count;

	/* Kernels with real-time locks keep no such word: there every way to the lock is timed */
	if (!bpf_core_field_exists(struct rw_semaphore, count))
		return 1;
	count = BPF_CORE_READ(mm, mmap_lock.count.counter);
	return writes ? !!count : !!(count & (RWSEM_WRITER | RWSEM_HANDOFF | RWSEM_READ_FAILED));
}

/*
 * Whether another process holds it, such as one that reads what is resident; of several readers the last one is known, which may be who asks,
 * and nobody waits for oneself: a process of one thread waits for others alone
 */
static __always_inline u32 others_hold(struct task_struct *task, struct mm_struct *mm)
{
	struct task_struct *owner;

	if (BPF_CORE_READ(task, signal, nr_threads) == 1)
		return 1;
	if (!bpf_core_field_exists(struct rw_semaphore, owner))
		return 0;
	owner = (struct task_struct *)(BPF_CORE_READ(mm, mmap_lock.owner.counter) & ~RWSEM_OWNER_FLAGS);
	return owner && BPF_CORE_READ(owner, mm) != mm;
}

/* See is_for_writing */
static __always_inline int has_succeeded(struct bpf_raw_tracepoint_args *ctx)
{
	u64 success;

	if (bpf_core_field_exists(struct trace_event_raw_mmap_lock, memcg_id))
		asm volatile("%0 = *(u64 *)(%1 + 16)" : "=r"(success) : "r"(ctx));
	else
		asm volatile("%0 = *(u64 *)(%1 + 24)" : "=r"(success) : "r"(ctx));
	return !!(u8)success;
}

SEC("raw_tp/mmap_lock_start_locking")
int operation_lock_asked(struct bpf_raw_tracepoint_args *ctx)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32, tid = bpf_get_current_pid_tgid();
	struct task_struct *task = current_task();
	struct mm_struct *mm = (struct mm_struct *)ctx->args[0];
	struct lock_wait wait = { .mm = (u64)mm };
	struct pt_regs r;

	if (!counts_operations(pid) || mm != BPF_CORE_READ(task, mm) || !is_taken(mm, is_for_writing(ctx)))
		return 0;
	wait.by_others = others_hold(task, mm);
	if (bpf_probe_read_kernel(&r, sizeof(r), (void *)bpf_task_pt_regs(bpf_get_current_task_btf())) ||
	    !find_running(pid, r.sp, &wait.word))
		return 0;
	wait.switches = BPF_CORE_READ(task, nvcsw);
	wait.queued = queued_so_far();
	wait.began = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&operation_waits, &tid, &wait, BPF_ANY))
		drop(DROP_OPERATION, 1);
	return 0;
}

SEC("raw_tp/mmap_lock_acquire_returned")
int operation_lock_taken(struct bpf_raw_tracepoint_args *ctx)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32, tid = bpf_get_current_pid_tgid(), what;
	struct lock_wait *wait;
	u64 took, queued;

	if (!counts_operations(pid))
		return 0;
	wait = bpf_map_lookup_elem(&operation_waits, &tid);
	if (!wait)
		return 0;
	/* Who only tried, and goes on to wait, asks once more */
	if (wait->mm == ctx->args[0] && has_succeeded(ctx)) {
		took = bpf_ktime_get_ns() - wait->began;
		queued = queued_so_far() - wait->queued;
		/* Two clocks */
		if (queued > took)
			queued = took;
		what = BPF_CORE_READ(current_task(), nvcsw) != wait->switches ? OPERATION_LOCK_SLEPT : OPERATION_LOCK_SPUN;
		if (wait->by_others)
			what = OPERATION_LOCK_OTHERS;
		charge(pid, wait->word, what, took - queued, queued, 0);
	}
	bpf_map_delete_elem(&operation_waits, &tid);
	return 0;
}

#endif
