/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* The page-table walk, for the walk program and for the hooks */
#ifndef VARVE_WALK_H
#define VARVE_WALK_H

#define PTE_PRESENT (1ull << 0)
#define PTE_ACCESSED (1ull << 5)
#define PTE_PSE (1ull << 7)
/* _PAGE_PROTNONE: present for the kernel, but not for the processor (NUMA hinting) */
#define PTE_PROTNONE (1ull << 8)
#define PTE_SPECIAL (1ull << 9)
#define PTE_DIRTY (1ull << 6)
/* _PAGE_UFFD_WP: protected through userfaultfd, and not written since */
#define PTE_GUARDED (1ull << 10)
/* _PAGE_SAVED_DIRTY: where the dirty bit goes while an entry is write-protected */
#define PTE_SAVED_DIRTY (1ull << 58)
#define DIRTY_SHIFT 6
#define SAVED_DIRTY_SHIFT 58
#define PTE_SOFT_DIRTY (1ull << 11)

#define SIZE_4K (1ull << 12)
#define SIZE_2M (1ull << 21)
#define SIZE_1G (1ull << 30)
#define SIZE_512G (1ull << 39)
#define SIZE_256T (1ull << 48)

/* More steps than this never happen: 2^23 of 2 MiB are 16 TiB */
#define MAX_STEPS (1u << 23)

/* So many cold pages among 64 are looked at together first */
#define MANY_COLD 16

struct walk_context {
	struct scratch *s;
};

static const u8 lowest_bit[64] = {
	0,  1,	2,  53, 3,  7,	54, 27, 4,  38, 41, 8,	34, 55, 48, 28, 62, 5,	39, 46, 44, 42,
	22, 9,	24, 35, 59, 56, 49, 18, 29, 11, 63, 52, 6,  26, 37, 40, 33, 47, 61, 45, 43, 21,
	23, 58, 17, 10, 51, 25, 36, 32, 60, 20, 57, 16, 50, 31, 19, 15, 30, 14, 13, 12,
};

static __always_inline u32 count_ones(u64 x)
{
	x -= (x >> 1) & 0x5555555555555555ull;
	x = (x & 0x3333333333333333ull) + ((x >> 2) & 0x3333333333333333ull);
	x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0full;
	return (x * 0x0101010101010101ull) >> 56;
}

/* The frame of an entry; the kernel inverts the frame of entries that the processor must not use */
static __always_inline u64 frame_of(struct scratch *s, u64 entry)
{
	entry ^= (entry & PTE_PRESENT) - 1;
	return (entry & s->frame_mask) >> 12;
}

/*
 * How many entries from `at` on have frames that go on by one from each to the next, upwards (step 1)
 * or downwards (step -1): the buddy allocator gives out both. A struct page read by itself costs as
 * much as a run of them.
 */
static __always_inline u64 run_of_frames(struct scratch *s, u32 at, u64 frame, u64 step)
{
	u64 differs = 1ull << BLOCK_PAGES;

	/*
	 * Without branches: the verifier would follow each of them through all that comes after. Not unrolled: the compiler
	 * would hold all entries on the stack.
	 */
#pragma clang loop unroll(disable)
	for (u32 i = 1; i < BLOCK_PAGES; i++) {
		u64 other = frame_of(s, s->t1[(at + i) & 511]) ^ (frame + i * step), negative;

		other |= (at + i) & 512;
		negative = -other;
		barrier_var(negative);
		differs |= ((other | negative) >> 63) << i;
	}
	return lowest_bit[((differs & -differs) * 0x022fdd63cc95386dull) >> 58];
}

/* Notes what struct page shows of the page of one bit of a word of entries. Not static, as scan_word is not. */
__noinline int look_at_cold(struct scratch *s, u32 word, u64 bit)
{
	u32 bits, at;
	u64 frame, first, count = 1;

	if (!s)
		return 0;
	clear_look(s);
	word &= 7;
	at = word * 64 + lowest_bit[(bit * 0x022fdd63cc95386dull) >> 58];
	first = frame = frame_of(s, s->t1[at & 511]);
	if (bpf_ksym_exists(bpf_rdonly_cast))
		look_in_place(s, frame);
	barrier();
	if (!s->look.known) {
		if (frame - s->block_frame >= s->block_count) {
			count = run_of_frames(s, at, frame, 1);
			if (count == 1) {
				count = run_of_frames(s, at, frame, -1ull);
				first = frame - (count - 1);
			}
		}
		look_at_copy(s, frame, first, count);
	}
	bits = bits_of_look(s);
	if (bits & BIT_MEMORY)
		s->memory |= bit;
	if (!(bits & ~BIT_MEMORY))
		return 0;
	if (bits & BIT_OTHERS) {
		s->region.others[word] |= bit;
	} else {
		if (bits & BIT_YOUNG)
			s->region.young[word] |= bit;
		if (bits & BIT_REFERENCED)
			s->region.referenced[word] |= bit;
	}
	if (bits & BIT_PINNED)
		s->region.pinned[word] |= bit;
	return 0;
}

/*
 * One bit of 64 entries. This function and the next are not static, so that the verifier looks at
 * each by itself: 64 entries in 8 words for all callers would be too much for it.
 */
__noinline u64 gather(struct scratch *s, u32 word, u32 bit)
{
	u64 *t, result = 0;

	if (!s)
		return 0;
	t = s->t1 + (word & 7) * 64;
	bit &= 63;
#pragma unroll
	for (int j = 0; j < 64; j++) {
		result |= ((t[j] >> bit) & 1) << j;
		barrier_var(result);
	}
	return result;
}

#define MAYBE_GIVEN_BACK 2u

/*
 * Whether some page of 64 entries needs a look of its own; or may, if it is anonymous. Straight-line code: the processor then waits
 * for the memory of some twenty pages at a time. Entries that are not cold take part for nothing.
 */
__noinline u32 any_remarkable(struct scratch *s, u32 word)
{
	u64 *t, flags = 0, compound = 0, count = 0, back = 0;
	u64 size = bpf_core_type_size(struct page), vmemmap, mask;

	/* Looked at by itself on kernels without the cast, too */
	if (!s || !bpf_ksym_exists(bpf_rdonly_cast))
		return 1;
	t = s->t1 + (word & 7) * 64;
	vmemmap = s->vmemmap;
	mask = s->frame_mask;
#pragma unroll
	for (int j = 0; j < 64; j++) {
		u8 *page = struct_page(vmemmap + ((t[j] & mask) >> 12) * size);

		flags |= page_flags(page);
		compound |= page_compound(page);
		/* Of a page that could not be read all is 0, and this is large */
		count |= (u64)page_count(page) - 1;
		back |= ~(t[j] >> DIRTY_SHIFT | t[j] >> SAVED_DIRTY_SHIFT);
		barrier_var(back);
		barrier_var(flags);
		barrier_var(compound);
		barrier_var(count);
	}
	if (is_remarkable(flags, compound, count))
		return 1;
	return back & 1 ? MAYBE_GIVEN_BACK : 0;
}

/* Whether a page of 64 entries may be one that MADV_FREE was called for; the others that are clean are a file's */
__noinline u32 any_given_back(struct scratch *s, u32 word)
{
	u64 *t, back = 0, size = bpf_core_type_size(struct page), vmemmap, mask;

	if (!s || !bpf_ksym_exists(bpf_rdonly_cast))
		return 1;
	t = s->t1 + (word & 7) * 64;
	vmemmap = s->vmemmap;
	mask = s->frame_mask;
#pragma unroll
	for (int j = 0; j < 64; j++) {
		u8 *page = struct_page(vmemmap + ((t[j] & mask) >> 12) * size);

		back |= page_mapping(page) & ~(t[j] >> DIRTY_SHIFT | t[j] >> SAVED_DIRTY_SHIFT);
		barrier_var(back);
	}
	return back & MAPPING_ANON;
}

/*
 * Writes under userfaultfd's write protection. An entry without the mark is new or was written since;
 * it is dirty if it was written.
 */
static __always_inline void guarded_word(struct scratch *s, u32 word, u64 mask, u64 any)
{
	u64 guarded = any & PTE_GUARDED ? gather(s, word, 10) : 0;
	u64 dirty = any & PTE_DIRTY ? gather(s, word, 6) : 0;

	if (any & PTE_SAVED_DIRTY)
		dirty |= gather(s, word, 58);
	word &= 7;
	s->region.written[word] = dirty & ~guarded & mask;
	if (s->options & OPT_PAGE_FLAGS)
		s->region.intact[word] = guarded & mask;
}

/* The bits of those of 64 entries that lie between the first and the last one of their table */
static __always_inline u64 mask_between(u32 word, u32 first, u32 last)
{
	u64 mask = ~0ull;

	if (word == first / 64)
		mask &= ~0ull << (first % 64);
	if (word == last / 64)
		mask &= ~0ull >> (63 - last % 64);
	return word < first / 64 || word > last / 64 ? 0 : mask;
}

/* Looks at 64 entries of a table, as far as they lie between `first` and `last`; returns what was touched */
__noinline u64 scan_word(struct scratch *s, u64 table, u32 word, u32 first, u32 last)
{
	struct region *r;
	u64 present = 0, accessed = 0, any = 0, special = 0, cold, mask;
	u64 *t;

	if (!s)
		return 0;
	r = &s->region;
	word &= 7;
	mask = mask_between(word, first, last);
	if (!s->whole) {
		if (mask && bpf_probe_read_kernel(s->t1 + word * 64, 512, (void *)(table + word * 512))) {
			s->table_failures++;
			mask = 0;
		}
		if (!mask) {
			r->accessed[word] = r->sticky[word] = r->written[word] = r->intact[word] = 0;
			r->young[word] = r->referenced[word] = r->pinned[word] = r->others[word] = 0;
			s->there[word] = 0;
			return 0;
		}
	}
	t = s->t1 + word * 64;
#pragma unroll
	for (int j = 0; j < 64; j++) {
		u64 entry = t[j];

		present |= (entry & 1) << j;
		accessed |= ((entry >> 5) & 1) << j;
		any |= entry;
		/* Keeps the compiler from holding all 64 entries at once */
		barrier_var(present);
		barrier_var(accessed);
		barrier_var(any);
	}
	if (any & PTE_PROTNONE)
		present |= gather(s, word, 8);
	present &= mask;
	s->there[word] = present;
	accessed = s->reached ? present : accessed & present;
	if (any & PTE_SPECIAL)
		special = gather(s, word, 9);
	r->accessed[word] = accessed & ~special;
	r->sticky[word] = accessed & special;
	r->intact[word] = 0;
	if (s->options & OPT_GUARDED)
		guarded_word(s, word, present & ~special, any);
	else
		r->written[word] = s->options & OPT_SOFT_DIRTY ? gather(s, word, 11) & present : 0;
	r->young[word] = 0;
	r->referenced[word] = 0;
	r->pinned[word] = 0;
	r->others[word] = 0;
	r->present += count_ones(present);
	/* A device may write to a pinned page and leave no trace: then all pages' pins must be known */
	cold = present & ~special & (s->options & OPT_GUARDED ? ~0ull : ~accessed);
	if (cold && s->options & OPT_PAGE_FLAGS) {
		if (bpf_ksym_exists(bpf_rdonly_cast) && !(any & PTE_PROTNONE) &&
		    count_ones(cold) >= MANY_COLD) {
			u32 remarkable = any_remarkable(s, word);

			if (!remarkable || (remarkable == MAYBE_GIVEN_BACK && !any_given_back(s, word))) {
				s->checks += count_ones(cold);
				return accessed;
			}
		}
#pragma clang loop unroll(disable)
		for (u32 i = 0; i < 64 && cold; i++) {
			look_at_cold(s, word, cold & -cold);
			cold &= cold - 1;
		}
		accessed |= r->young[word] | r->referenced[word] | r->pinned[word] | r->others[word];
	}
	return accessed;
}

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
