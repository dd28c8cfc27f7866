/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * How long the target waits for pages that somebody has to bring: the time in which one of its threads at
 * least sleeps in a fault of its own. Two processors that add at once may count a little twice or not at all;
 * the length of an interval is all that depends on it.
 */
#ifndef VARVE_WAITS_H
#define VARVE_WAITS_H

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct waits);
} waits SEC(".maps");

/* Threads that sleep in a fault, and since when */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, u64);
} asleep SEC(".maps");

SEC("raw_tp/sched_switch")
int thread_switch(struct bpf_raw_tracepoint_args *ctx)
{
	u64 now, since, *slept;
	u32 zero = 0, thread;
	struct waits *w = bpf_map_lookup_elem(&waits, &zero);
	struct pt_regs r;

	if (!w)
		return 0;
	now = bpf_ktime_get_ns();
	thread = BPF_CORE_READ((struct task_struct *)ctx->args[2], pid);
	slept = bpf_map_lookup_elem(&asleep, &thread);
	if (slept) {
		since = *slept > w->covered ? *slept : w->covered;
		bpf_map_delete_elem(&asleep, &thread);
		if (now > since) {
			w->covered = now;
			__sync_fetch_and_add(&w->waited, now - since);
		}
	}
	/* Whoever leaves does so of its own will, and from an exception, not from a system call */
	if (!ctx->args[3] || !tracked_current() ||
	    bpf_probe_read_kernel(&r, sizeof(r), (void *)bpf_task_pt_regs(bpf_get_current_task_btf())) ||
	    (r.cs & 3) != 3 || r.orig_ax != (u64)-1)
		return 0;
	thread = bpf_get_current_pid_tgid();
	bpf_map_update_elem(&asleep, &thread, &now, BPF_ANY);
	return 0;
}

#endif
