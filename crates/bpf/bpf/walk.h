/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* The page-table walk, for the walk program and for the hooks */
#ifndef VARVE_WALK_H
#define VARVE_WALK_H

#define SIZE_4K (1ull << 12)
#define SIZE_2M (1ull << 21)
#define SIZE_1G (1ull << 30)
#define SIZE_512G (1ull << 39)
#define SIZE_256T (1ull << 48)

/* More steps than this never happen: 2^23 of 2 MiB are 16 TiB */
#define MAX_STEPS (1u << 23)

struct walk_context {
	struct scratch *s;
};

static __always_inline void flush_batch(struct scratch *s)
{
	u64 count = s->batch.count;
	u64 bytes = __builtin_offsetof(struct rec_vanish, entries) +
		    count * sizeof(struct vanish_entry);

	if (count == 0 && s->batch.end == 0)
		return;
	/* When the last of it had been read. Nothing of it goes before this is sent, so that a boundary in between reads it, too. */
	s->batch.r.time = bpf_ktime_get_ns();
	/*
	 * What was there, is gone and is in no range counts as touched: the reader compares. So a large process that ends need not
	 * fit into the ring, whose last quarter is for what can be known in no other way.
	 */
	if (s->says_ranges && bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) > 3 * (u64)s->ring_wake) {
		/* Said in no range */
	} else if (count <= VANISH_ENTRIES && bytes <= sizeof(s->batch) &&
		 bpf_ringbuf_output(&ring, &s->batch, bytes, wake(s->ring_wake)) && !s->says_ranges) {
		drop(DROP_VANISH_PAGES, s->batch_pages);
	}
	s->batch.count = 0;
	s->batch_pages = 0;
}

/* The same before the batch is full; all up to an address was looked at */
static __always_inline void flush_up_to(struct scratch *s, u64 address)
{
	if (!s->says_ranges || address <= s->batch.start) {
		flush_batch(s);
		return;
	}
	s->batch.end = address;
	flush_batch(s);
	s->batch.start = address;
	s->batch.end = 0;
}

__noinline int batch_region(struct scratch *s)
{
	struct region *r;
	struct vanish_entry *e;
	u64 written = 0, others = 0;

	if (!s)
		return 0;
	r = &s->region;
	if (s->batch.count > VANISH_ENTRIES - ENTRIES_OF_REGION)
		flush_up_to(s, r->base);
	if (s->batch.count > VANISH_ENTRIES - ENTRIES_OF_REGION)
		return 0;
	e = &s->batch.entries[s->batch.count];
	e->base = r->base | (r->leaf & 3);
	for (int i = 0; i < 8; i++) {
		u64 pages = r->accessed[i] | r->young[i] | r->referenced[i] | r->pinned[i] |
			    r->sticky[i];

		e->pages[i] = pages;
		written |= r->written[i];
		others |= r->others[i];
		s->batch_pages += count_ones(pages | r->others[i]);
	}
	s->batch.count++;
	if (written && s->batch.count < VANISH_ENTRIES) {
		e = &s->batch.entries[s->batch.count];
		e->base = r->base | (r->leaf & 3) | ENTRY_WRITTEN;
		for (int i = 0; i < 8; i++)
			e->pages[i] = r->written[i];
		s->batch.count++;
	}
	if (others && s->batch.count < VANISH_ENTRIES) {
		e = &s->batch.entries[s->batch.count];
		e->base = r->base | (r->leaf & 3) | ENTRY_OTHERS;
		for (int i = 0; i < 8; i++)
			e->pages[i] = r->others[i];
		s->batch.count++;
	}
	return 0;
}

static __always_inline void emit_region(struct scratch *s)
{
	struct region *out;
	u32 at = s->out_count;

	if (s->to_ring) {
		batch_region(s);
		return;
	}
	out = bpf_map_lookup_elem(&regions, &at);
	if (!out)
		return;
	*out = s->region;
	s->out_count = at + 1;
}

/* An entry of an upper table at a kernel address */
static __always_inline u64 entry_of(struct scratch *s, u64 *copy, u64 *copied, u64 table, u32 index)
{
	u64 entry = 0;

	index &= 511;
	if (!s->whole) {
		if (bpf_probe_read_kernel(&entry, 8, (void *)(table + index * 8)))
			s->table_failures++;
		return entry;
	}
	if (*copied != table) {
		*copied = table;
		if (bpf_probe_read_kernel(copy, SIZE_4K, (void *)table)) {
			s->table_failures++;
			*copied = 0;
			return 0;
		}
	}
	return copy[index];
}

static __always_inline void batch_there(struct scratch *s, u64 base)
{
	struct vanish_entry *e;

	if (s->batch.count >= VANISH_ENTRIES)
		flush_up_to(s, base & ~(SIZE_2M - 1));
	if (s->batch.count >= VANISH_ENTRIES)
		return;
	e = &s->batch.entries[s->batch.count];
	e->base = base | ENTRY_THERE;
	for (int i = 0; i < 8; i++)
		e->pages[i] = s->there[i];
	s->batch.count++;
}

/* Says what is there, for who wants to know that. Not inline: so the verifier looks at it once */
__noinline int emit_resident(struct scratch *s, u64 base)
{
	struct resident *out;
	u64 any = 0;
	u32 at;

	if (!s || !s->wants_residents)
		return 0;
	for (int i = 0; i < 8; i++)
		any |= s->there[i];
	if (any && s->to_ring) {
		batch_there(s, base);
		return 0;
	}
	at = s->residents;
	out = any ? bpf_map_lookup_elem(&residents, &at) : NULL;
	if (!out)
		return 0;
	out->base = base;
	for (int i = 0; i < 8; i++)
		out->pages[i] = s->there[i];
	s->residents = at + 1;
	return 0;
}

__noinline int scan_leaf(struct scratch *s, u64 entry, u64 va, u32 leaf)
{
	struct region *r;
	u64 size = leaf == LEAF_1G ? SIZE_1G : SIZE_2M;
	u64 accessed = (entry >> 5) & 1;
	u32 bits = 0;

	if (!s)
		return 0;
	accessed |= s->reached;
	r = &s->region;
	__builtin_memset(r, 0, sizeof(*r));
	r->base = va & ~(size - 1);
	r->leaf = leaf;
	r->present = 1;
	s->present += size >> 12;
	/* Bit 12 of a huge entry is PAT, not part of the frame: clear all below the huge page */
	if (s->options & OPT_PAGE_FLAGS && !(entry & PTE_SPECIAL)) {
		clear_look(s);
		look_at_copy(s, frame_of(s, entry) & ~((size >> 12) - 1), 0, 1);
		bits = bits_of_look(s);
	}
	if (bits & BIT_HUGETLB || leaf == LEAF_1G)
		r->flags = bits & BIT_HUGETLB ? REGION_HUGETLB : 0;
	if (accessed) {
		if (leaf == LEAF_1G || bits & BIT_HUGETLB)
			r->sticky[0] = 1;
		else
			r->accessed[0] = 1;
	} else {
		r->others[0] = !!(bits & BIT_OTHERS);
		r->young[0] = !r->others[0] && bits & BIT_YOUNG;
		r->referenced[0] = !r->others[0] && bits & BIT_REFERENCED;
		r->pinned[0] = !!(bits & BIT_PINNED);
	}
	if (s->options & OPT_GUARDED && !(bits & BIT_HUGETLB) && leaf == LEAF_2M) {
		r->written[0] = !(entry & PTE_GUARDED) && entry & (PTE_DIRTY | PTE_SAVED_DIRTY);
		r->intact[0] = entry & PTE_GUARDED && s->options & OPT_PAGE_FLAGS;
		r->pinned[0] = !!(bits & BIT_PINNED);
	} else if (s->options & OPT_SOFT_DIRTY && !(s->options & OPT_GUARDED)) {
		r->written[0] = (entry >> 11) & 1;
	}
	if (accessed || bits & (BIT_YOUNG | BIT_REFERENCED | BIT_PINNED))
		emit_region(s);
	/* All 512 pages of 2 MiB: of a huge page that was split some may be gone */
	if (accessed || !(bits & BIT_MEMORY) || entry & (PTE_DIRTY | PTE_SAVED_DIRTY)) {
		for (int i = 0; i < 8; i++)
			s->there[i] = ~0ull;
		emit_resident(s, r->base | leaf);
	}
	return 0;
}

/* What was given back is there no more, unless it was written since. Not static: the verifier looks at it by itself */
__noinline int leave_given_back(struct scratch *s, u32 word)
{
	if (s && s->wants_residents)
		s->there[word & 7] &= ~s->memory | gather(s, word, DIRTY_SHIFT) |
				      gather(s, word, SAVED_DIRTY_SHIFT);
	return 0;
}

static __always_inline int scan_table(struct scratch *s, u64 table, u64 va)
{
	u64 base = va & ~(SIZE_2M - 1), touched = 0;
	u32 first = (va >> 12) & 511, last = 511;

	if (s->end - base < SIZE_2M)
		last = ((s->end - 1) >> 12) & 511;
	if (s->whole && bpf_probe_read_kernel(s->t1, SIZE_4K, (void *)table)) {
		s->table_failures++;
		return 0;
	}
	s->region.base = base;
	s->region.leaf = LEAF_4K;
	s->region.flags = 0;
	s->region.present = 0;
#pragma clang loop unroll(disable)
	for (u32 word = 0; word < 8; word++) {
		s->memory = 0;
		touched |= scan_word(s, table, word, first, last);
		if (s->memory)
			leave_given_back(s, word);
	}
	s->present += s->region.present;
	if (touched)
		emit_region(s);
	emit_resident(s, base);
	return 0;
}

/* How many groups of eight empty entries are passed by at a time */
#define MAX_EMPTY_GROUPS 16

/*
 * The index of an entry behind `index` before which all entries of a copied table are empty. A small process has a few
 * pages in tables that span 512 GiB: going through those entry by entry took longer than reading its pages.
 */
__noinline u32 behind_empty(struct scratch *s, u32 level, u32 index)
{
	u32 group = index / 8 + 1;
	u64 *t;

	if (!s)
		return index + 1;
	if (level == 4)
		t = s->t4;
	else
		t = level == 3 ? s->t3 : s->t2;
	/* The rest of its own group may not be empty */
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < 7; i++) {
		if ((++index & 7) == 0)
			break;
		if (t[index & 511])
			return index;
	}
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < MAX_EMPTY_GROUPS && group < 64; i++) {
		u64 *e = t + (group & 63) * 8;

		if (e[0] | e[1] | e[2] | e[3] | e[4] | e[5] | e[6] | e[7])
			break;
		group++;
	}
	return group * 8;
}

/* The address from which an empty entry at `va` need not be looked at again; `copied` is the table whose copy is there */
static __always_inline u64 next_entry(struct scratch *s, u32 level, u64 va, u64 copied, u64 table)
{
	u32 shift = 3 + 9 * level, index = (va >> shift) & 511, next = index + 1;

	if (s->whole && copied == table)
		next = behind_empty(s, level, index);
	return ((va >> shift) + (next - index)) << shift;
}

/* Goes on by one entry of the lowest table that covers the cursor */
static long step(u32 i, struct walk_context *c)
{
	struct scratch *s = c->s;
	u64 va = s->cursor, entry, table = s->pgd;

	if (va >= s->end)
		return 1;
	if (!s->to_ring && (s->out_count >= s->out_max || s->residents >= s->out_max || s->present >= s->most)) {
		s->full = 1;
		return 1;
	}
	if (s->levels == 5) {
		entry = entry_of(s, s->t5, &s->at5, table, va >> 48);
		if (!(entry & PTE_PRESENT)) {
			s->cursor = (va | (SIZE_256T - 1)) + 1;
			return 0;
		}
		table = s->direct + (entry & s->frame_mask);
	}
	entry = entry_of(s, s->t4, &s->at4, table, va >> 39);
	if (!(entry & PTE_PRESENT)) {
		s->cursor = next_entry(s, 4, va, s->at4, table);
		return 0;
	}
	table = s->direct + (entry & s->frame_mask);
	entry = entry_of(s, s->t3, &s->at3, table, va >> 30);
	if (entry & PTE_PSE || !(entry & PTE_PRESENT)) {
		if (entry & (PTE_PRESENT | PTE_PROTNONE) && entry & PTE_PSE)
			scan_leaf(s, entry, va, LEAF_1G);
		s->cursor = next_entry(s, 3, va, s->at3, table);
		return 0;
	}
	table = s->direct + (entry & s->frame_mask);
	entry = entry_of(s, s->t2, &s->at2, table, va >> 21);
	/* A huge page that is being split has PSE alone, and is present for the kernel */
	if (entry & PTE_PSE)
		scan_leaf(s, entry, va, LEAF_2M);
	else if (entry & PTE_PRESENT)
		scan_table(s, s->direct + (entry & s->frame_mask), va);
	s->cursor = next_entry(s, 2, va, s->at2, table);
	return 0;
}

/* Fills in what does not change from range to range */
static __always_inline void prepare(struct scratch *s, const struct settings *g, u64 pgd)
{
	s->pgd = pgd;
	s->direct = g->direct;
	s->frame_mask = g->frame_mask;
	s->vmemmap = g->vmemmap;
	s->levels = g->levels;
	s->options = g->options;
	s->ring_wake = g->ring_wake;
	s->at5 = s->at4 = s->at3 = s->at2 = 0;
	s->present = s->checks = s->check_failures = s->table_failures = 0;
	s->out_count = s->full = 0;
	s->reached = 0;
	s->wants_residents = s->says_ranges = s->residents = 0;
	s->block_count = 0;
	s->head = 0;
	s->batch.count = 0;
	s->batch.start = s->batch.end = 0;
	s->batch_pages = 0;
}

static __always_inline u64 user_end(const struct settings *g)
{
	return g->levels == 5 ? 1ull << 56 : 1ull << 47;
}

/* Walks from cursor to end. Not static: the verifier looks at it once, not once for each caller */
__noinline int walk_range(struct scratch *s)
{
	struct walk_context c = { .s = s };

	if (!s)
		return 0;
	s->whole = s->end - s->cursor > 2 * SIZE_2M;
	bpf_loop(MAX_STEPS, step, &c, 0);
	return 0;
}

#endif
