/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* Processes that are not tracked because they may be fault handlers. */
#ifndef VARVE_EXEMPT_H
#define VARVE_EXEMPT_H

/* The number by which a thread knows itself */
static __always_inline u32 own_number(struct task_struct *task)
{
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	u32 level = BPF_CORE_READ(pid, level), number = 0;
	u64 at;

	if (level > 32) /* MAX_PID_NS_LEVEL */
		return 0;
	at = (u64)pid + bpf_core_field_offset(struct pid, numbers) + level * bpf_core_type_size(struct upid) +
	     bpf_core_field_offset(struct upid, nr);
	bpf_probe_read_kernel(&number, sizeof(number), (void *)(unsigned long)at);
	return number;
}

/* A process may be made that is to be a fault handler: it is not tracked, and what it makes is. The recorder finds out
 * whether it is what it may be.
 */
static __always_inline int exempts(u32 *flags, u32 parent, u32 pid)
{
	struct exempt new = {
		.made = bpf_ktime_get_ns(),
		.parent = parent,
		.flags = *flags | TRACK_HANDLER_MADE,
	};

	if ((*flags & (TRACK_HANDLERS | TRACK_HANDLER_MADE)) != TRACK_HANDLERS ||
	    bpf_map_update_elem(&exempt, &pid, &new, BPF_ANY))
		return 0;
	__sync_fetch_and_or(flags, TRACK_HANDLER_MADE);
	return 1;
}

/* Tells of a process that ran unobserved until now, and is tracked from here on */
static __always_inline struct tracked *end_exemption(struct task_struct *task, u32 pid, u64 now)
{
	struct exempt *e = bpf_map_lookup_elem(&exempt, &pid);
	struct tracked new = { .leader = (u64)task, .image = now };
	struct rec_fork *rec;
	u32 parent;

	if (!e)
		return NULL;
	new.flags = e->flags & ~TRACK_HANDLER_MADE;
	parent = e->parent;
	bpf_map_delete_elem(&exempt, &pid);
	if (!(new.flags & TRACK_FOLLOW))
		return NULL;
	if (bpf_map_update_elem(&tracked, &pid, &new, BPF_ANY)) {
		drop(DROP_TRACK, 1);
		return NULL;
	}
	rec = bpf_ringbuf_reserve(&ring, sizeof(*rec), 0);
	if (!rec) {
		drop(DROP_LIFE, 1);
	} else {
		__builtin_memset(rec, 0, sizeof(*rec));
		fill(&rec->r, REC_FORK, 0);
		rec->r.time = now - 1; /* before the program that it runs */
		rec->r.pid = parent;
		rec->r.tid = parent;
		rec->pid = pid;
		rec->tid = BPF_CORE_READ(task, pid);
		rec->mm = (u64)BPF_CORE_READ(task, mm);
		rec->tracked = 1;
		rec->own_tid = own_number(task);
		bpf_ringbuf_submit(rec, 0);
	}
	return bpf_map_lookup_elem(&tracked, &pid);
}

#endif
