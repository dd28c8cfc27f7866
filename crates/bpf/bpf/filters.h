/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * Which processes a hold would end: a wait with a time limit that is interrupted goes on by the system call restart_syscall, which a filter
 * (seccomp) may not let through.
 */
#ifndef VARVE_FILTERS_H
#define VARVE_FILTERS_H

#define RESTART_SYSCALL 219
#define RESTART_SYSCALL_32 0

struct filter_context {
	u64 node;
	u64 head;
	u32 forbids;
};

/* Whether the thread runs a 32-bit program, by the registers at the top of its kernel stack */
static __always_inline int is_32_bit(struct task_struct *task)
{
	u64 stack = (u64)BPF_CORE_READ(task, stack), cs = 0;

	stack += KERNEL_STACK_BYTES - sizeof(struct pt_regs) + __builtin_offsetof(struct pt_regs, cs);
	return !bpf_probe_read_kernel(&cs, sizeof(cs), (void *)(unsigned long)stack) && cs == CS_32;
}

/*
 * The kernel keeps which calls a thread's filters let through whatever the arguments (5.11, seccomp_cache_prepare). What was read of a filter that
 * went meanwhile is forgotten.
 */
static __always_inline int forbids_restart(struct task_struct *task)
{
	u64 filter, at, word = ~0ull;
	u32 number = RESTART_SYSCALL;

	if (!bpf_core_field_exists(struct seccomp, filter) ||
	    !bpf_core_field_exists(struct seccomp_filter, cache.allow_native))
		return 0;
	filter = (u64)BPF_CORE_READ(task, seccomp.filter);
	if (!filter)
		return 0;
	at = filter + bpf_core_field_offset(struct seccomp_filter, cache.allow_native);
	if (bpf_core_field_exists(struct seccomp_filter, cache.allow_compat) && is_32_bit(task)) {
		at = filter + bpf_core_field_offset(struct seccomp_filter, cache.allow_compat);
		number = RESTART_SYSCALL_32;
	}
	at += number / 64 * 8;
	if (bpf_probe_read_kernel(&word, sizeof(word), (void *)(unsigned long)at) ||
	    (u64)BPF_CORE_READ(task, seccomp.filter) != filter)
		return 0;
	return !(word >> number % 64 & 1);
}

static long filter_step(u32 i, struct filter_context *c)
{
	struct task_struct *task;

	if (!c->node || c->node == c->head)
		return 1;
	task = CAST_TASK(c->node - bpf_core_field_offset(struct task_struct, thread_node));
	c->forbids = forbids_restart(task);
	c->node = (u64)BPF_CORE_READ(task, thread_node.next);
	return c->forbids;
}

SEC("syscall")
int look_at_filters(struct filter_args *a)
{
	u64 leader = find_task(a->pid);
	struct filter_context c = {};
	struct signal_struct *signal;

	a->forbids_restart = 0;
	if (!leader)
		return 0;
	signal = BPF_CORE_READ(CAST_TASK(leader), signal);
	c.head = (u64)signal + bpf_core_field_offset(struct signal_struct, thread_head);
	c.node = (u64)BPF_CORE_READ(signal, thread_head.next);
	bpf_loop(1 << 16, filter_step, &c, 0);
	a->forbids_restart = c.forbids;
	return 0;
}

#endif
