/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* Entries of the lowest page tables, 64 at a time: which pages were touched, and what is known of those that were not */
#ifndef VARVE_ENTRIES_H
#define VARVE_ENTRIES_H

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

/* So many cold pages among 64 are looked at together first */
#define MANY_COLD 16

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

#endif
