/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* Finds out, in the recorder and on its own memory, where the kernel keeps physical memory and what its page flags are. */
#ifndef VARVE_CALIBRATE_H
#define VARVE_CALIBRATE_H

struct calibrate_context {
	u64 pgd;
	u64 address;
	u64 value;
	u64 direct;
	u64 frame_mask;
	u32 levels;
	u32 found;
};

/* The page table entry of an address by a guess of where physical memory is mapped; 0 if that fails */
static __noinline u64 leaf_entry(u64 pgd, u64 address, u64 direct, u64 mask, u32 levels)
{
	u64 table = pgd, entry = 0;

	for (int level = 4; level >= 0; level--) {
		u32 shift = 12 + 9 * level;

		if (level == 4 && levels == 4)
			continue;
		if (bpf_probe_read_kernel(&entry, 8, (void *)(table + ((address >> shift) & 511) * 8)))
			return 0;
		if (!(entry & PTE_PRESENT))
			return 0;
		if (level == 0)
			return entry;
		if (entry & PTE_PSE)
			return 0;
		table = direct + (entry & mask);
	}
	return 0;
}

/* What physical memory holds for an address, by its entry and the same guess */
static __always_inline long read_physical(u64 *value, u64 entry, u64 address, u64 direct, u64 mask)
{
	return bpf_probe_read_kernel(value, sizeof(*value), (void *)(direct + (entry & mask) + (address & 4095)));
}

/* Bits of an entry that are a physical address, less one that may mean "encrypted" */
static __always_inline u64 mask_of(u32 guess)
{
	u64 all = 0x000ffffffffff000ull;

	return guess == 0 ? all : guess == 1 ? all & ~(1ull << 51) : all & ~(1ull << 47);
}

static long calibrate_step(u32 i, struct calibrate_context *c)
{
	u64 direct = (c->pgd & ~(SIZE_1G - 1)) - i * SIZE_1G;

	if (!(direct >> 63))
		return 1;
	for (u32 guess = 0; guess < 6; guess++) {
		u64 mask = mask_of(guess % 3);
		u32 levels = guess < 3 ? 4 : 5;
		u64 entry = leaf_entry(c->pgd, c->address, direct, mask, levels), value = 0;

		if (entry && !read_physical(&value, entry, c->address, direct, mask) && value == c->value) {
			c->direct = direct;
			c->frame_mask = mask;
			c->levels = levels;
			c->found = 1;
			return 1;
		}
	}
	return 0;
}

static __always_inline u32 features(void)
{
	u32 f = 0;

	if (bpf_core_enum_value_exists(enum pageflags, PG_young))
		f |= FEATURE_YOUNG;
	if (bpf_core_enum_value_exists(enum pageflags, PG_referenced))
		f |= FEATURE_REFERENCED;
	if (bpf_core_field_exists(struct page, compound_head))
		f |= FEATURE_COMPOUND;
	if (bpf_core_field_exists(struct folio, _pincount))
		f |= FEATURE_PINCOUNT;
	if (bpf_core_enum_value_exists(enum pagetype, PGTY_hugetlb) ||
	    bpf_core_field_exists(struct page, compound_dtor))
		f |= FEATURE_HUGETLB;
	return f;
}

/* Run in the recorder, on its own memory */
SEC("syscall")
int calibrate(struct calibrate_args *a)
{
	struct task_struct *task = current_task();
	struct settings *g = get_settings();
	struct calibrate_context c = {};
	u64 pgd = (u64)BPF_CORE_READ(task, mm, pgd);

	a->error = -EINVAL;
	a->tgid = bpf_get_current_pid_tgid() >> 32;
	a->page_bytes = bpf_core_type_size(struct page);
	a->features = features();
	a->root = (u64)BPF_CORE_READ(task, fs, root.dentry);
	a->root_mount = (u64)BPF_CORE_READ(task, fs, root.mnt);
	if (!g)
		return 0;
	if (a->what == CAL_FIND) {
		c.pgd = pgd;
		c.address = a->address;
		c.value = a->value;
		bpf_loop(1 << 17, calibrate_step, &c, 0);
		a->direct = c.direct;
		a->frame_mask = c.frame_mask;
		a->levels = c.levels;
		a->error = c.found ? 0 : -ESRCH;
	} else if (a->what == CAL_TRANSLATE) {
		u64 value = 0;

		a->entry = leaf_entry(pgd, a->address, g->direct, g->frame_mask, g->levels);
		a->error = a->entry ? read_physical(&value, a->entry, a->address, g->direct, g->frame_mask) : -ESRCH;
		a->value = value;
	} else if (a->what == CAL_PIPE) {
		struct file **files = BPF_CORE_READ(task, files, fdt, fd);
		struct pipe_inode_info *pipe;
		struct pipe_buffer *buffers;
		struct file *file = 0;

		bpf_probe_read_kernel(&file, sizeof(file), files + a->fd);
		pipe = BPF_CORE_READ(file, private_data);
		buffers = BPF_CORE_READ(pipe, bufs);
		a->page = (u64)BPF_CORE_READ(buffers, page);
		a->error = a->page ? 0 : -ESRCH;
	}
	return 0;
}

#endif
