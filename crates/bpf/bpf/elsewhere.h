/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* What the kernel does by itself, or for somebody else, to what is tracked: reaping, collapsing, and letting a held cgroup go */
#ifndef VARVE_ELSEWHERE_H
#define VARVE_ELSEWHERE_H

/*
 * The reaper of a machine or a cgroup without memory takes the pages of a process that does not end by itself. It names a
 * thread of it.
 */
SEC("raw_tp/start_task_reaping")
int task_reaping(struct bpf_raw_tracepoint_args *ctx)
{
	u64 task = task_numbered(ctx->args[0], 0);
	u64 mm = task ? (u64)BPF_CORE_READ(CAST_TASK(task), mm) : 0;
	u32 owner = tracked_owner(mm);
	struct request *q = owner ? request_range(mm, CAUSE_EXIT, 0, ~0ull >> 1, owner) : NULL;

	if (q)
		hand_over(ctx, q, 0, 0);
	return 0;
}

static long count_tracked(void *map, u32 *pid, struct tracked *t, u32 *count)
{
	*count += !!(t->flags & TRACK_VANISH);
	return 0;
}

/* Came with the argument that is the file, in 6.2 (commit 4c9473e87e75) */
struct trace_event_raw_mm_khugepaged_collapse_file {
	int result;
} __attribute__((preserve_access_index));

/*
 * khugepaged has collapsed pages of a file, or takes down tables that such pages stand in the way of: the accessed bits of
 * all who have it mapped are gone. Those who ask for it by madvise are heard before (OP_MADVISE).
 */
SEC("raw_tp/mm_khugepaged_scan_file")
int file_collapsed(struct bpf_raw_tracepoint_args *ctx)
{
	u32 result = ctx->args[5];
	u32 count = 0;

	if (BPF_CORE_READ(current_task(), mm))
		return 0;
	if (result != bpf_core_enum_value(enum scan_result, SCAN_SUCCEED) &&
	    !(bpf_core_enum_value_exists(enum scan_result, SCAN_PTE_MAPPED_HUGEPAGE) &&
	      result == bpf_core_enum_value(enum scan_result, SCAN_PTE_MAPPED_HUGEPAGE)))
		return 0;
	if (bpf_core_type_exists(struct trace_event_raw_mm_khugepaged_collapse_file))
		count = count_sharers(ctx->args[2]);
	else
		bpf_for_each_map_elem(&tracked, count_tracked, &count, 0);
	if (count)
		drop(DROP_VANISH_WALKS, count);
	return 0;
}

#define IORING_OP_FALLOCATE 17
#define IORING_OP_MADVISE 25
#define IORING_OP_FTRUNCATE 55

/*
 * What an io_uring is asked to do makes no system call of its own. What takes pages away is a loss, but where they are seen to
 * be gone: then only advice is, of which some clears bits alone.
 */
static __always_inline void count_submission(u64 request)
{
	struct settings *g = get_settings();
	struct tracked *t = tracked_current();
	u8 op;

	if (!g || !t || !(t->flags & TRACK_VANISH) || !bpf_core_field_exists(struct io_kiocb, opcode))
		return;
	op = BPF_CORE_READ((struct io_kiocb *)(unsigned long)request, opcode);
	if (op == IORING_OP_MADVISE ||
	    (!(g->options & OPT_RANGES) && (op == IORING_OP_FALLOCATE || op == IORING_OP_FTRUNCATE)))
		drop(DROP_VANISH_WALKS, 1);
}

SEC("raw_tp/io_uring_submit_req")
int request_submitted(struct bpf_raw_tracepoint_args *ctx)
{
	count_submission(ctx->args[0]);
	return 0;
}

/* The same up to 6.2 */
SEC("raw_tp/io_uring_submit_sqe")
int entry_submitted(struct bpf_raw_tracepoint_args *ctx)
{
	count_submission(ctx->args[0]);
	return 0;
}

/* The cgroup whose freezer holds the target, and how often it let go */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct held_group);
} held_group SEC(".maps");

SEC("raw_tp/cgroup_unfreeze")
int group_thawed(struct bpf_raw_tracepoint_args *ctx)
{
	struct cgroup *group = (struct cgroup *)ctx->args[0];
	u32 zero = 0;
	struct held_group *held = bpf_map_lookup_elem(&held_group, &zero);

	if (held && held->id && held->id == BPF_CORE_READ(group, kn, id))
		__sync_fetch_and_add(&held->thaws, 1);
	return 0;
}

#endif
