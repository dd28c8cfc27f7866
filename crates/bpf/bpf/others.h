/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * What any process of the machine may do to pages that a tracked one has mapped: cut a file that it has
 * mapped, or advise it through a pidfd. The bits are read in the context of whoever does it.
 */
#ifndef VARVE_OTHERS_H
#define VARVE_OTHERS_H

#define O_WRONLY 1
#define O_RDWR 2
#define O_TRUNC 01000
#define PROC_MAGIC 0x9fa0
/* Three steps of a walk through a tree of mappings for each of them: 5,000 mappings of one file */
#define MAX_SHARER_STEPS (1 << 14)
#define MAX_RANGES 16
/* include/uapi/linux/magic.h; that of FUSE is in fs/fuse/inode.c */
#define OVERLAYFS_MAGIC 0x794c7630
#define ECRYPTFS_MAGIC 0xf15f
#define FUSE_MAGIC 0x65735546

static __always_inline u64 file_of(u32 fd)
{
	struct fdtable *table = BPF_CORE_READ(current_task(), files, fdt);
	struct file **files = BPF_CORE_READ(table, fd);
	u64 file = 0;

	if (fd >= BPF_CORE_READ(table, max_fds) ||
	    bpf_probe_read_kernel(&file, sizeof(file), files + fd))
		return 0;
	return file;
}

/* A way through the tree of all mappings of a file, which may change under us */
struct sharers {
	u64 node; /* 0: done */
	u64 from; /* the node that `node` was reached from */
	u32 found;
	u32 unknown;
	/* Which pages of the file, first and one past the last */
	u64 first;
	u64 end;
};

static __always_inline struct vm_area_struct *area_of(u64 node)
{
	return (struct vm_area_struct *)(unsigned long)(node - bpf_core_field_offset(struct vm_area_struct, shared.rb));
}

/* The tracked process of a mapping, if it is of these pages; 0: none. Not inline: the walk needs the stack as well */
static __noinline u32 sharer_owner(struct sharers *c, u64 node)
{
	struct vm_area_struct *area = area_of(node);
	struct mm_struct *mm = BPF_CORE_READ(area, vm_mm);
	u64 pages = (BPF_CORE_READ(area, vm_end) - BPF_CORE_READ(area, vm_start)) >> 12;
	u64 page = BPF_CORE_READ(area, vm_pgoff);
	struct tracked *t;
	u32 owner = 0;

	if (page >= c->end || page + pages <= c->first)
		return 0;
	if (bpf_core_field_exists(struct mm_struct, owner))
		owner = BPF_CORE_READ(mm, owner, tgid);
	else if (mm == BPF_CORE_READ(current_task(), mm))
		owner = bpf_get_current_pid_tgid() >> 32;
	else
		c->unknown++;
	t = bpf_map_lookup_elem(&tracked, &owner);
	return t && t->flags & TRACK_VANISH ? owner : 0;
}

static __always_inline void sharer(struct sharers *c, u64 node)
{
	u32 owner = sharer_owner(c, node);
	struct vm_area_struct *area = area_of(node);
	u64 begin, bound, page;

	if (!owner)
		return;
	begin = BPF_CORE_READ(area, vm_start);
	bound = BPF_CORE_READ(area, vm_end);
	page = BPF_CORE_READ(area, vm_pgoff);
	if (c->end - page < (bound - begin) >> 12)
		bound = begin + ((c->end - page) << 12);
	if (page < c->first)
		begin += (c->first - page) << 12;
	vanish((u64)BPF_CORE_READ(area, vm_mm), CAUSE_TRUNCATE, begin, bound, owner);
}

/* Down to the left, then to the right, then up: the node that one comes from says what is next. Whether this one is new. */
static __always_inline int next_node(struct sharers *c)
{
	u64 node = c->node, from = c->from, parent, left, right;
	struct rb_node *n = (struct rb_node *)(unsigned long)node;

	parent = (u64)BPF_CORE_READ(n, __rb_parent_color) & ~3ull;
	left = (u64)BPF_CORE_READ(n, rb_left);
	right = (u64)BPF_CORE_READ(n, rb_right);
	c->from = node;
	if (from == parent)
		c->node = left ? left : right ? right : parent;
	else if (from == left)
		c->node = right ? right : parent;
	else
		c->node = parent;
	return from == parent;
}

static long sharer_step(u32 i, struct sharers *c)
{
	u64 node = c->node;

	if (!node)
		return 1;
	if (next_node(c))
		sharer(c, node);
	return 0;
}

static long count_sharer_step(u32 i, struct sharers *c)
{
	u64 node = c->node;

	if (!node)
		return 1;
	if (next_node(c))
		c->found += !!sharer_owner(c, node);
	return 0;
}

static __always_inline u64 first_sharer(u64 file)
{
	struct file *f = (struct file *)(unsigned long)file;

	return (u64)BPF_CORE_READ(f, f_mapping, i_mmap.rb_root.rb_node);
}

static __always_inline void end_sharers(struct sharers *c)
{
	if (c->node)
		c->unknown++;
	if (c->unknown)
		drop(DROP_VANISH_WALKS, c->unknown);
}

/*
 * Reads the bits of all tracked mappings of pages of a file; those that cannot be read are a loss. Not static: as with the
 * walk, the verifier looks at it once.
 */
__noinline int each_sharer(u64 file, u64 first, u64 end)
{
	struct sharers c = { .first = first, .end = end, .node = first_sharer(file) };

	if (c.node)
		bpf_loop(MAX_SHARER_STEPS, sharer_step, &c, 0);
	end_sharers(&c);
	return 0;
}

/* How many tracked processes have mapped pages of a file; those that cannot be found out are a loss */
static __always_inline u32 count_sharers(u64 file)
{
	struct sharers c = { .end = ~0ull, .node = first_sharer(file) };

	if (c.node)
		bpf_loop(MAX_SHARER_STEPS, count_sharer_step, &c, 0);
	end_sharers(&c);
	return c.found;
}

static __always_inline int cuts_file(struct call *c, u64 file)
{
	struct file *f = (struct file *)(unsigned long)file;

	if (c->op == OP_FALLOCATE)
		return !!(c->args[1] & FALLOCATE_DROPS);
	return (s64)c->args[1] < BPF_CORE_READ(f, f_inode, i_size);
}

/* Whether mappings may be of another file, below this one: it does not know of them */
static __always_inline int is_stacked(u64 file)
{
	struct file *f = (struct file *)(unsigned long)file;
	u64 magic = BPF_CORE_READ(f, f_inode, i_sb, s_magic);

	return magic == OVERLAYFS_MAGIC || magic == ECRYPTFS_MAGIC || magic == FUSE_MAGIC;
}

static long everybody_step(void *map, u32 *pid, struct tracked *t, u32 *cause)
{
	u64 task;

	if (!(t->flags & TRACK_VANISH))
		return 0;
	task = find_task(*pid);
	if (task)
		vanish(mm_of(task), *cause, 0, ~0ull >> 1, *pid);
	return 0;
}

/* Reads the bits of all that is tracked */
__noinline int everybody(u32 cause)
{
	bpf_for_each_map_elem(&tracked, everybody_step, &cause, 0);
	return 0;
}

static __always_inline u64 task_of(struct pid *pid)
{
	u64 node = pid ? (u64)BPF_CORE_READ(pid, tasks[0].first) : 0;
	struct task_struct *task;

	if (!node)
		return 0;
	task = CAST_TASK(node - bpf_core_field_offset(struct task_struct, pid_links));
	/* Nothing else than a task's own pid leads back to itself */
	return BPF_CORE_READ(task, thread_pid) == pid ? (u64)task : 0;
}

/* The process behind a pidfd; 0: there is none, or it cannot be found, which is a loss */
static __noinline u64 task_behind(u32 fd)
{
	u64 file = file_of(fd), task;
	struct file *f = (struct file *)(unsigned long)file;

	if (!file)
		return 0;
	/* Where a pidfd keeps its process: in the file up to 6.8, in a file system's inode since */
	task = task_of(BPF_CORE_READ(f, private_data));
	if (!task)
		task = task_of(BPF_CORE_READ(f, f_inode, i_private));
	if (!task)
		drop(DROP_VANISH_WALKS, 1);
	return task;
}

/* process_mrelease: all of the memory of a process that was killed, before it ends by itself */
static __noinline int reap_other(struct call *c)
{
	u64 task = c ? task_behind(c->args[0]) : 0;
	struct tracked *t;
	u32 owner;

	if (!task)
		return 0;
	owner = BPF_CORE_READ(CAST_TASK(task), tgid);
	t = bpf_map_lookup_elem(&tracked, &owner);
	if (!t || !(t->flags & TRACK_VANISH))
		return 0;
	return vanish(mm_of(task), CAUSE_EXIT, 0, ~0ull >> 1, owner);
}

/* process_madvise: some or all of the memory of the process behind a pidfd */
static __noinline int advise_other(struct call *c)
{
	u64 task = (u64)current_task(), range[2], mm;
	struct tracked *t;
	u32 owner;

	if (!c || !advice_drops(c->args[3]))
		return 0;
	/* Negative ones that the kernel takes mean the caller itself */
	if ((s32)c->args[0] >= 0)
		task = task_behind(c->args[0]);
	if (!task)
		return 0;
	owner = BPF_CORE_READ(CAST_TASK(task), tgid);
	t = bpf_map_lookup_elem(&tracked, &owner);
	mm = (u64)BPF_CORE_READ(CAST_TASK(task), mm);
	if (!t || !(t->flags & TRACK_VANISH) || !mm)
		return 0;
	if (c->args[2] > MAX_RANGES)
		return vanish(mm, CAUSE_ADVISE, 0, ~0ull >> 1, owner);
	for (u32 i = 0; i < MAX_RANGES; i++) {
		u32 narrow[2];

		if (i >= c->args[2])
			break;
		if (c->wide == 4) {
			if (bpf_probe_read_user(narrow, 8, (void *)(c->args[1] + i * 8)))
				return vanish(mm, CAUSE_ADVISE, 0, ~0ull >> 1, owner);
			range[0] = narrow[0];
			range[1] = narrow[1];
		} else if (bpf_probe_read_user(range, 16, (void *)(c->args[1] + i * 16))) {
			/* Not in memory yet: the call itself will bring it */
			return vanish(mm, CAUSE_ADVISE, 0, ~0ull >> 1, owner);
		}
		vanish(mm, CAUSE_ADVISE, range[0], range[0] + range[1], owner);
	}
	return 0;
}

/* The mappings that MADV_COLLAPSE is given, one after the other */
struct collapsed {
	u64 at;
	u64 end;
	u64 file;
	u64 page; /* of the file, at `at` */
	u64 next;
};

static long see_mapping(struct task_struct *task, struct vm_area_struct *area, struct collapsed *c)
{
	u64 start = BPF_CORE_READ(area, vm_start);

	c->file = (u64)BPF_CORE_READ(area, vm_file);
	c->next = BPF_CORE_READ(area, vm_end);
	c->page = BPF_CORE_READ(area, vm_pgoff) + ((c->at - start) >> 12);
	return 0;
}

/*
 * The kernel takes down the tables of all mappings of pages of files that it collapses, whoever's they are. Huge pages of
 * anonymous memory begin as accessed. The mappings themselves are gone through here, not in a callback: only eight calls may be nested.
 */
static __always_inline void collapse(u64 start, u64 bytes)
{
	struct collapsed c = { .at = start & ~(SIZE_4K - 1), .end = start + bytes };
	u32 cause = CAUSE_ADVISE;

#pragma clang loop unroll(disable)
	for (u32 i = 0; i < MAX_RANGES; i++) {
		u64 end;

		if (c.at >= c.end)
			return;
		c.file = 0;
		/* Fails where nothing is mapped, and where somebody is changing the mappings */
		if (bpf_find_vma(bpf_get_current_task_btf(), c.at, see_mapping, &c, 0))
			break;
		end = c.next < c.end ? c.next : c.end;
		if (c.file)
			each_sharer(c.file, c.page & ~511ull,
				    (c.page + ((end - c.at) >> 12) + 511) & ~511ull);
		c.at = end;
	}
	if (c.at < c.end)
		everybody(cause);
}

/*
 * Which file an open cuts to nothing is known when it is done. Then it is too late to read bits, but
 * not too late to say so.
 */
static __noinline int begin_open(struct call *c)
{
	u32 tid = bpf_get_current_pid_tgid();
	u64 flags = 0;
	u8 one = 1;

	if (!c)
		return 0;
	if (c->op == OP_OPEN)
		flags = c->args[1];
	else if (c->op == OP_OPENAT)
		flags = c->args[2];
	else if (c->op == OP_OPENAT2)
		bpf_probe_read_user(&flags, sizeof(flags), (void *)c->args[2]);
	else
		flags = O_TRUNC;
	/* To be cut, or written: a file of /proc may be what is written */
	if (!(flags & (O_TRUNC | O_WRONLY | O_RDWR)))
		return 0;
	one += !(flags & O_TRUNC);
	if (bpf_map_update_elem(&opening, &tid, &one, BPF_NOEXIST) == 0)
		__sync_fetch_and_add(&openings, 1);
	else
		drop(DROP_VANISH_WALKS, 1);
	return 0;
}

/* Whether a file clears the accessed bits of a tracked process when it is written, and the recorder is not who has opened it */
static __noinline u32 clears_bits(u64 file)
{
	struct file *f = (struct file *)(unsigned long)file;
	struct settings *g = get_settings();
	struct proc_inode *inode;
	struct tracked *t;
	char name[8] = {};
	u64 task;
	u32 owner;

	if (!g || g->self_pid == bpf_get_current_pid_tgid() >> 32 ||
	    BPF_CORE_READ(f, f_inode, i_sb, s_magic) != PROC_MAGIC)
		return 0;
	bpf_probe_read_kernel_str(name, sizeof(name), BPF_CORE_READ(f, f_path.dentry, d_name.name));
	if (name[0] != 'c' || name[1] != 'l' || name[2] != 'e' || name[3] != 'a' || name[4] != 'r')
		return 0;
	inode = (struct proc_inode *)(unsigned long)((u64)BPF_CORE_READ(f, f_inode) -
						     bpf_core_field_offset(struct proc_inode, vfs_inode));
	task = task_of(BPF_CORE_READ(inode, pid));
	owner = task ? BPF_CORE_READ(CAST_TASK(task), tgid) : 0;
	t = bpf_map_lookup_elem(&tracked, &owner);
	return t && t->flags & TRACK_VANISH;
}

static __always_inline void end_open(s64 result)
{
	u32 tid = bpf_get_current_pid_tgid(), found;
	u8 *what = bpf_map_lookup_elem(&opening, &tid);
	int is_cut = what && *what == 1;
	u64 file;

	if (!what)
		return;
	bpf_map_delete_elem(&opening, &tid);
	__sync_fetch_and_add(&openings, -1);
	file = result < 0 ? 0 : file_of(result);
	if (!file)
		return;
	found = clears_bits(file);
	if (!found && is_cut)
		found = count_sharers(file);
	if (found)
		drop(DROP_VANISH_WALKS, found);
}

/* Whether the recorder clears what it has read */
static __always_inline int clears_parts(void)
{
	struct settings *g = get_settings();

	return g && g->options & OPT_CLEARS && g->self_pid == bpf_get_current_pid_tgid() >> 32;
}

/* Calls whose effect is not limited to the caller's own memory; 0: the call is none of these */
static __always_inline int call_on_others(struct call *c)
{
	u32 cause = CAUSE_ADVISE;
	u64 file;

	switch (c->op) {
	case OP_FTRUNCATE:
	case OP_FALLOCATE:
		file = file_of(c->args[0]);
		if (!file || !cuts_file(c, file))
			return 1;
		cause = CAUSE_TRUNCATE;
		if (is_stacked(file))
			everybody(cause);
		else
			each_sharer(file, 0, ~0ull);
		return 1;
	case OP_PROCESS_MRELEASE:
		reap_other(c);
		return 1;
	case OP_MADVISE:
		if (c->args[2] == MADV_COLLAPSE) {
			collapse(c->args[0], c->args[1]);
			return 1;
		}
		/* Takes the pages from the file, and so from everybody who has mapped it */
		if (c->args[2] != MADV_REMOVE)
			return 0;
		everybody(cause);
		return 1;
	case OP_TRUNCATE:
		/* By name: the file is not known yet. This is a rare call. */
		cause = CAUSE_TRUNCATE;
		everybody(cause);
		return 1;
	case OP_PROCESS_MADVISE:
		if (clears_parts())
			return 1;
		if (c->args[3] == MADV_COLLAPSE)
			everybody(cause);
		else
			advise_other(c);
		return 1;
	}
	return 0;
}

#endif
