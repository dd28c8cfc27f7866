/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * What the kernel accesses in a tracked process without the mapping, because a tracked process asked for it:
 * process_vm_readv, ptrace, and the files of /proc that are a process's memory. Each such access calls
 * folio_mark_accessed (mm/swap.c), which sets PG_referenced the first time and takes it away the second time, and of
 * which MGLRU leaves nothing on locked pages. So flags do not say: the calls do.
 */
#ifndef VARVE_REACH_H
#define VARVE_REACH_H

#define PTRACE_PEEKTEXT 1
#define PTRACE_PEEKDATA 2
#define PTRACE_POKETEXT 4
#define PTRACE_POKEDATA 5
#define MAX_VECTORS 1024 /* UIO_MAXIOV */

/* The number of a thread in the pid namespace that is so deep; 0: it has none there */
static __always_inline u32 number_at(struct task_struct *task, u32 level)
{
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	u32 number = 0;
	u64 at;

	if (!pid || level > BPF_CORE_READ(pid, level) || level > 32) /* MAX_PID_NS_LEVEL */
		return 0;
	at = (u64)pid + bpf_core_field_offset(struct pid, numbers) + level * bpf_core_type_size(struct upid) +
	     bpf_core_field_offset(struct upid, nr);
	bpf_probe_read_kernel(&number, sizeof(number), (void *)(unsigned long)at);
	return number;
}

#define XA_NODE_TAG 2 /* lib/xarray.c: an entry that is a node and not what was stored */
#define XA_MAX_DEPTH 6

/*
 * The task that has this number in the pid namespace that is so deep above the current thread; 0: none has. A namespace
 * keeps its numbers in an xarray (kernel/pid.c, find_pid_ns). A node that goes while it is read leads to no task whose pid
 * leads back to it.
 */
static __always_inline u64 task_numbered(u32 number, u32 level)
{
	struct pid *pid = BPF_CORE_READ(current_task(), thread_pid);
	struct pid_namespace *space = NULL;
	u64 at, entry;

	if (!pid || level > 32) /* MAX_PID_NS_LEVEL */
		return 0;
	at = (u64)pid + bpf_core_field_offset(struct pid, numbers) + level * bpf_core_type_size(struct upid) +
	     bpf_core_field_offset(struct upid, ns);
	bpf_probe_read_kernel(&space, sizeof(space), (void *)(unsigned long)at);
	entry = space ? (u64)BPF_CORE_READ(space, idr.idr_rt.xa_head) : 0;
	for (int i = 0; i < XA_MAX_DEPTH && (entry & 3) == XA_NODE_TAG; i++) {
		u64 slots = bpf_core_field_size(struct xa_node, slots) / sizeof(u64);
		u64 node = entry - XA_NODE_TAG;
		u64 slot = number >> BPF_CORE_READ((struct xa_node *)(unsigned long)node, shift);

		if (i == 0 && slot >= slots)
			return 0;
		at = node + bpf_core_field_offset(struct xa_node, slots) + (slot & (slots - 1)) * sizeof(u64);
		entry = 0;
		bpf_probe_read_kernel(&entry, sizeof(entry), (void *)(unsigned long)at);
	}
	return (entry & 3) == 0 ? task_of((struct pid *)(unsigned long)entry) : 0;
}

/* The memory of the thread that the current thread calls so; 0: there is none */
static __noinline u64 mm_called(u32 number)
{
	u64 task = task_numbered(number, BPF_CORE_READ(current_task(), thread_pid, level));

	return task ? (u64)BPF_CORE_READ(CAST_TASK(task), mm) : 0;
}

static __always_inline u32 owner_of(u64 mm)
{
	if (bpf_core_field_exists(struct mm_struct, owner))
		return BPF_CORE_READ(CAST_MM(mm), owner, tgid);
	return mm == (u64)BPF_CORE_READ(current_task(), mm) ? bpf_get_current_pid_tgid() >> 32 : 0;
}

struct ranges {
	u64 mm;
	u64 vector;
	u64 bytes; /* of all, as far as they were read */
	u32 wide;
	u32 count;
	u32 owner;
	u32 failed;
};

/* One of an array of struct iovec. What is not in memory yet is a loss: the call itself will bring it. */
static __always_inline int read_range(u32 i, struct ranges *c, u64 *start, u64 *bytes)
{
	u64 range[2] = {};
	u32 narrow[2] = {};

	if (i >= c->count)
		return 0;
	if (c->wide == 4) {
		c->failed = bpf_probe_read_user(narrow, sizeof(narrow), (void *)(c->vector + (u64)i * 8)) != 0;
		range[0] = narrow[0];
		range[1] = narrow[1];
	} else {
		c->failed = bpf_probe_read_user(range, sizeof(range), (void *)(c->vector + (u64)i * 16)) != 0;
	}
	if (c->failed)
		drop(DROP_VANISH_WALKS, 1);
	*start = range[0];
	*bytes = range[1];
	return !c->failed;
}

static long add_range(u32 i, struct ranges *c)
{
	u64 start, bytes;

	if (!read_range(i, c, &start, &bytes))
		return 1;
	c->bytes += bytes;
	return 0;
}

static long reach_range(u32 i, struct ranges *c)
{
	u64 start, bytes;

	if (!read_range(i, c, &start, &bytes))
		return 1;
	if (bytes)
		vanish(c->mm, CAUSE_KERNEL_TOUCH, start, start + bytes, c->owner);
	return 0;
}

/* Who is tracked and owns this memory; 0: nobody */
static __always_inline u32 tracked_owner(u64 mm)
{
	u32 owner = mm ? owner_of(mm) : 0;
	struct tracked *t = bpf_map_lookup_elem(&tracked, &owner);

	return t && t->flags & TRACK_VANISH ? owner : 0;
}

/* Inline, as only eight calls may be nested */
static __always_inline void reach_process(struct call *c)
{
	struct ranges r = {};

	if (c->op == OP_PTRACE) {
		u64 what = c->args[0];

		if (what != PTRACE_PEEKTEXT && what != PTRACE_PEEKDATA && what != PTRACE_POKETEXT &&
		    what != PTRACE_POKEDATA)
			return;
		r.mm = mm_called(c->args[1]);
		r.owner = tracked_owner(r.mm);
		if (r.owner)
			vanish(r.mm, CAUSE_KERNEL_TOUCH, c->args[2], c->args[2] + c->wide, r.owner);
		return;
	}
	r.mm = mm_called(c->args[0]);
	r.owner = tracked_owner(r.mm);
	r.vector = c->args[3];
	r.count = c->args[4] > MAX_VECTORS ? 0 : c->args[4];
	r.wide = c->wide;
	if (r.owner)
		bpf_loop(MAX_VECTORS, reach_range, &r, 0);
}

/* ---- files of /proc ---- */

#define MEMORY_FILE_NONE 0
#define MEMORY_FILE_WHOLE 1	/* mem: positions are addresses */
#define MEMORY_FILE_ENVIRON 2
#define MEMORY_FILE_ARGUMENTS 3 /* cmdline */

static __always_inline u32 memory_file(struct file *f)
{
	char name[8] = {};

	if (BPF_CORE_READ(f, f_inode, i_sb, s_magic) != PROC_MAGIC)
		return MEMORY_FILE_NONE;
	bpf_probe_read_kernel_str(name, sizeof(name), BPF_CORE_READ(f, f_path.dentry, d_name.name));
	if (name[0] == 'm' && name[1] == 'e' && name[2] == 'm' && !name[3])
		return MEMORY_FILE_WHOLE;
	if (name[0] == 'e' && name[1] == 'n' && name[2] == 'v' && name[3] == 'i' && name[4] == 'r')
		return MEMORY_FILE_ENVIRON;
	if (name[0] == 'c' && name[1] == 'm' && name[2] == 'd' && name[3] == 'l' && name[4] == 'i')
		return MEMORY_FILE_ARGUMENTS;
	return MEMORY_FILE_NONE;
}

static __always_inline void note_memory_file(s64 descriptor)
{
	u64 file = descriptor < 0 ? 0 : file_of(descriptor);

	if (file && memory_file((struct file *)(unsigned long)file))
		memory_files = 1;
}

/* Whether others may move the position of a file between here and the call */
static __always_inline int shares_position(struct file *f)
{
	if (BPF_CORE_READ(current_task(), files, count.counter) > 1)
		return 1;
	if (bpf_core_field_exists(struct file, f_ref))
		return BPF_CORE_READ(f, f_ref.refcnt.counter) > 0; /* FILE_REF_ONEREF */
	return BPF_CORE_READ(f, f_count.counter) > 1;
}

static __always_inline void reach_by_address(struct call *c, struct file *f)
{
	struct ranges r = { .vector = c->args[1], .count = c->args[2], .wide = c->wide };
	u64 start = BPF_CORE_READ(f, f_pos);
	int own = c->op == OP_PREAD || c->op == OP_PREADV;

	if (c->op == OP_READ || c->op == OP_PREAD)
		r.bytes = c->args[2];
	else
		bpf_loop(MAX_VECTORS, add_range, &r, 0);
	if (own && (s64)c->args[3] != -1) /* preadv2 takes the file's */
		start = c->wide == 4 ? c->args[3] | c->args[4] << 32 : c->args[3];
	else if (shares_position(f))
		drop(DROP_VANISH_WALKS, 1);
	c->args[1] = start;
	c->args[2] = start + r.bytes;
}

/*
 * The process whose memory a call reaches through a file of /proc, if it is tracked; 0: none. The arguments become the
 * memory, the first address and the end.
 */
static __noinline u32 reach_by_file(struct call *c)
{
	struct file *f;
	u64 mm, node;
	u32 kind, owner;

	if (!c)
		return 0;
	f = (struct file *)(unsigned long)file_of(c->args[0]);
	kind = f ? memory_file(f) : MEMORY_FILE_NONE;
	if (kind == MEMORY_FILE_NONE)
		return 0;
	mm = (u64)BPF_CORE_READ(f, private_data);
	if (kind == MEMORY_FILE_ARGUMENTS) {
		struct proc_inode *inode = (struct proc_inode *)(unsigned long)(
			(u64)BPF_CORE_READ(f, f_inode) - bpf_core_field_offset(struct proc_inode, vfs_inode));

		node = task_of(BPF_CORE_READ(inode, pid));
		mm = node ? mm_of(node) : 0;
	}
	owner = tracked_owner(mm);
	if (!owner)
		return 0;
	if (kind == MEMORY_FILE_WHOLE) {
		reach_by_address(c, f);
	} else {
		c->args[1] = BPF_CORE_READ(CAST_MM(mm), arg_start);
		c->args[2] = BPF_CORE_READ(CAST_MM(mm), env_end);
	}
	c->args[0] = mm;
	return owner;
}

/* What is to be looked at before a call of a process that is tracked with its pages, or of any other that may take pages of those */
static __always_inline struct request *request_call(struct call *c)
{
	struct request *q;
	u32 owner;

	if (c->op >= OP_READ && c->op <= OP_PREADV) {
		owner = reach_by_file(c);
		return owner ? request_range(c->args[0], CAUSE_KERNEL_TOUCH, c->args[1], c->args[2], owner) : NULL;
	}
	q = may_take(c) ? new_request(REQUEST_CALL, CAUSE_NONE) : NULL;
	if (q)
		q->call = *c;
	return q;
}

#endif
