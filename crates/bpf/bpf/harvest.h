/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * What clear_refs takes away, kept at the moment when it does. These programs are attached to the functions of the kernel
 * that clear one page's accessed bit: reading and clearing are one atomic operation there, so that no access falls in
 * between, and nobody needs to stand still.
 */
#ifndef VARVE_HARVEST_H
#define VARVE_HARVEST_H

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct harvest);
} harvest SEC(".maps");

/* Of the thread that clears; others call the same functions, to age pages of all processes */
static __always_inline struct harvest *current_harvest(void)
{
	u32 zero = 0;
	struct harvest *h = bpf_map_lookup_elem(&harvest, &zero);

	return h && h->thread == (u32)bpf_get_current_pid_tgid() ? h : NULL;
}

/* The region of an address: clear_refs goes upwards, so it is the last one or a new one */
static __always_inline struct region *harvest_region(struct harvest *h, u64 base, u32 leaf)
{
	u32 at = h->regions - 1;
	struct region *r = h->regions ? bpf_map_lookup_elem(&regions, &at) : NULL;

	if (r && r->base == base && r->leaf == leaf)
		return r;
	at = h->regions;
	r = bpf_map_lookup_elem(&regions, &at);
	if (!r) {
		h->lost++;
		return NULL;
	}
	__builtin_memset(r, 0, sizeof(*r));
	r->base = base;
	r->leaf = leaf;
	h->regions = at + 1;
	return r;
}

/*
 * The flags of a page are looked at after its bit was taken and before clear_refs resets them. Whoever takes the bit
 * instead (DAMON) holds the same lock of the page table until it has set PG_young.
 */
static __noinline int harvest_page(u64 *entry, u64 address, u32 leaf, u32 young)
{
	struct harvest *h = current_harvest();
	u32 zero = 0, bits = 0, word = (address >> 18) & 7;
	struct scratch *s = bpf_map_lookup_elem(&walk_scratch, &zero);
	u64 bit = 1ull << ((address >> 12) & 63), frame, value = 0;
	struct region *r;

	if (!h || !s)
		return 0;
	if (leaf != LEAF_4K) {
		word = 0;
		bit = 1;
	}
	bpf_probe_read_kernel(&value, sizeof(value), entry);
	if (!young) {
		if (!(s->options & OPT_PAGE_FLAGS))
			return 0;
		frame = frame_of(s, value);
		clear_look(s);
		if (leaf != LEAF_4K)
			frame &= ~511ull;
		else if (bpf_ksym_exists(bpf_rdonly_cast))
			look_in_place(s, frame);
		barrier();
		if (!s->look.known)
			look_at_copy(s, frame, frame, 1);
		bits = bits_of_look(s) & ~BIT_MEMORY;
		h->check_failures = s->check_failures;
		/* Each page has flags of its own; those of a folio must not outlive their reset */
		s->block_count = 0;
		if (!bits)
			return 0;
	}
	r = harvest_region(h, address & ~(SIZE_2M - 1), leaf);
	if (!r)
		return 0;
	if (young)
		r->accessed[word] |= bit;
	/* The page may go before soft-dirty bits are cleared, and its hook reports what was accessed from here on */
	if (s->options & OPT_SOFT_DIRTY && value & PTE_SOFT_DIRTY)
		r->written[word] |= bit;
	if (bits & BIT_OTHERS) {
		r->others[word] |= bit;
	} else {
		if (bits & BIT_YOUNG)
			r->young[word] |= bit;
		if (bits & BIT_REFERENCED)
			r->referenced[word] |= bit;
	}
	if (bits & BIT_PINNED)
		r->pinned[word] |= bit;
	return 0;
}

static __always_inline int bit_taken(u64 *ctx, u32 leaf)
{
	struct harvest *h = current_harvest();
	struct vm_area_struct *vma = (struct vm_area_struct *)ctx[0];

	/* The recorder may have to make room for itself meanwhile, which ages pages of others */
	if (!h || h->what != HARVEST_ACCESSED || (u64)BPF_CORE_READ(vma, vm_mm) != h->mm)
		return 0;
	/* int, and bool on later kernels */
	return harvest_page((u64 *)ctx[2], ctx[1], leaf, (u8)ctx[3]);
}

SEC("fexit/ptep_test_and_clear_young")
int page_aged(u64 *ctx)
{
	return bit_taken(ctx, LEAF_4K);
}

SEC("fexit/pmdp_test_and_clear_young")
int huge_page_aged(u64 *ctx)
{
	return bit_taken(ctx, LEAF_2M);
}

/*
 * Soft-dirty bits. They are set by faults alone, and clear_refs keeps faults out while it runs: what is read
 * before a table is cleared is what is cleared.
 */
static __noinline int harvest_writes(struct scratch *s, u64 *pmd, u64 start, u64 end)
{
	struct harvest *h = current_harvest();
	u32 first = (start >> 12) & 511, last = ((end - 1) >> 12) & 511;
	u64 entry = 0;
	struct region *r;

	if (!s || !h)
		return 0;
	bpf_probe_read_kernel(&entry, sizeof(entry), pmd);
	if (entry & PTE_PSE) {
		if (!(entry & PTE_SOFT_DIRTY))
			return 0;
		r = harvest_region(h, start & ~(SIZE_2M - 1), LEAF_2M);
		if (r) {
			r->written[0] = 1;
			r->accessed[0] = (entry >> 5) & 1;
		}
		return 0;
	}
	if (!(entry & PTE_PRESENT))
		return 0;
	if (bpf_probe_read_kernel(s->t1, SIZE_4K, (void *)(s->direct + (entry & s->frame_mask)))) {
		h->table_failures++;
		return 0;
	}
#pragma clang loop unroll(disable)
	for (u32 word = 0; word < 8; word++) {
		u64 mask = ~0ull, written;

		if (word < first / 64 || word > last / 64)
			continue;
		if (word == first / 64)
			mask &= ~0ull << (first % 64);
		if (word == last / 64)
			mask &= ~0ull >> (63 - last % 64);
		written = gather(s, word, 11) & gather(s, word, 0) & mask;
		if (!written)
			continue;
		r = harvest_region(h, start & ~(SIZE_2M - 1), LEAF_4K);
		if (!r)
			return 0;
		r->written[word & 7] |= written;
		/* Accessed since its bit was taken. When it goes now its hook sees the access, but no longer that it wrote. */
		r->accessed[word & 7] |= written & gather(s, word, 5);
	}
	return 0;
}

SEC("fentry/clear_refs_pte_range")
int table_cleared(u64 *ctx)
{
	struct harvest *h = current_harvest();
	struct settings *g = get_settings();
	u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&walk_scratch, &zero);
	struct mm_walk *walk = (struct mm_walk *)ctx[3];

	if (!h || !g || !s)
		return 0;
	if (!h->mm)
		prepare(s, g, 0);
	/* Which memory it is the file says, and a program that is replaced meanwhile has another */
	h->mm = (u64)BPF_CORE_READ(walk, mm);
	if (h->what == HARVEST_WRITTEN)
		harvest_writes(s, (u64 *)ctx[0], ctx[1], ctx[2]);
	return 0;
}

#endif
