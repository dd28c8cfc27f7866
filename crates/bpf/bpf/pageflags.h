/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* What struct page shows of a page whose accessed bit is clear */
#ifndef VARVE_PAGEFLAGS_H
#define VARVE_PAGEFLAGS_H

#define BIT_YOUNG 1u
#define BIT_REFERENCED 2u
#define BIT_PINNED 4u
#define BIT_HUGETLB 8u
/* BIT_YOUNG or BIT_REFERENCED stands, and another process may have set it */
#define BIT_OTHERS 16u
/* Of a folio: its pages are anonymous; one page-table entry in the machine maps it */
#define BIT_ANON 32u
#define BIT_ALONE 64u
/*
 * Anonymous, always said. If its entry is clean, and not accessed either, MADV_FREE was called for it, which takes both bits and
 * leaves the page (or it was swapped in and only read). The flag that this call takes from the page goes later.
 */
#define BIT_MEMORY 128u

/* Low bits of page->mapping: anonymous and not of KSM (PAGE_MAPPING_FLAGS, FOLIO_MAPPING_FLAGS since 6.18) */
#define MAPPING_FLAGS 3u
#define MAPPING_ANON 1u

/* GUP_PIN_COUNTING_BIAS of include/linux/mm.h: a pin of a small folio counts this much */
#define PIN_BIAS 1024u

static __always_inline u32 flag_bits(u64 flags)
{
	u32 bits = 0;

	/* flags is the first word of struct page on all kernels; memdesc_flags_t since 6.18 */
	if (bpf_core_enum_value_exists(enum pageflags, PG_young) &&
	    (flags >> bpf_core_enum_value(enum pageflags, PG_young)) & 1)
		bits |= BIT_YOUNG;
	if (bpf_core_enum_value_exists(enum pageflags, PG_referenced) &&
	    (flags >> bpf_core_enum_value(enum pageflags, PG_referenced)) & 1)
		bits |= BIT_REFERENCED;
	return bits;
}

/*
 * Whose access set the flags of a page: they belong to the memory, not to a mapping of it. Whoever reads
 * the file or unmaps it (folio_mark_accessed) sets them for all who have mapped it. So they show this
 * process only where the memory is anonymous and nobody else's: the kernel says so of the page, or one entry
 * in the machine maps it. After a fork the first is not said until somebody writes.
 */
static __always_inline u32 whose(u32 bits, u64 flags)
{
	if (!(bits & (BIT_YOUNG | BIT_REFERENCED)))
		return bits & ~(BIT_ANON | BIT_ALONE);
	/* Aging alone sets PG_young, where it takes an entry's bit: with one entry in the machine that was this one's */
	if (!(bits & BIT_ANON) && bits & BIT_YOUNG && bits & BIT_ALONE)
		return bits & ~(BIT_ANON | BIT_ALONE);
	if (!(bits & BIT_ANON))
		bits |= BIT_OTHERS;
	else if (!(bits & BIT_ALONE) &&
		 !(bpf_core_enum_value_exists(enum pageflags, PG_anon_exclusive) &&
		   (flags >> bpf_core_enum_value(enum pageflags, PG_anon_exclusive)) & 1))
		bits |= BIT_OTHERS;
	return bits & ~(BIT_ANON | BIT_ALONE);
}

static __always_inline u32 mapping_bits(u64 mapping)
{
	return (mapping & MAPPING_FLAGS) == MAPPING_ANON ? BIT_ANON : 0;
}

/* Of a page that is a folio by itself. Its count of mappings begins at -1. */
static __always_inline u32 owner_bits(u8 *page)
{
	u32 bits = 0;

	if (!bpf_core_field_exists(struct page, mapping) ||
	    !bpf_core_field_exists(struct page, _mapcount))
		return 0;
	bits = mapping_bits(*(u64 *)(page + bpf_core_field_offset(struct page, mapping)));
	if (!*(u32 *)(page + bpf_core_field_offset(struct page, _mapcount)))
		bits |= BIT_ALONE;
	return bits;
}

static __always_inline u64 page_mapping(u8 *page)
{
	if (!bpf_core_field_exists(struct page, mapping))
		return 0;
	return *(u64 *)(page + bpf_core_field_offset(struct page, mapping));
}

static __always_inline u32 memory_bits(u64 mapping)
{
	return mapping_bits(mapping) ? BIT_MEMORY : 0;
}

/* Bits of a folio of more than one page, from its first two struct pages; `whose` is the caller's to ask */
static __always_inline u32 head_bits(struct scratch *s, u64 head)
{
	u64 size = bpf_core_type_size(struct page);
	u32 bits, count;

	if (s->head == head)
		return s->head_bits;
	if (size > PAGE_STRUCT_MAX)
		return 0;
	if (bpf_probe_read_kernel(s->head_pages, 2 * size, (void *)head)) {
		s->check_failures++;
		return 0;
	}
	bits = flag_bits(*(u64 *)s->head_pages);
	if (bpf_core_field_exists(struct folio, _pincount)) {
		u64 at = bpf_core_field_offset(struct folio, _pincount);

		if (at <= sizeof(s->head_pages) - 4 && *(u32 *)(s->head_pages + at))
			bits |= BIT_PINNED;
	} else {
		u64 at = bpf_core_field_offset(struct page, _refcount);

		count = at <= sizeof(s->head_pages) - 4 ? *(u32 *)(s->head_pages + at) : 0;
		if (count >= PIN_BIAS)
			bits |= BIT_PINNED;
	}
	if (bpf_core_enum_value_exists(enum pagetype, PGTY_hugetlb)) {
		u64 at = bpf_core_field_offset(struct page, page_type);

		if (at <= sizeof(s->head_pages) - 4 &&
		    *(u32 *)(s->head_pages + at) >> 24 ==
			    bpf_core_enum_value(enum pagetype, PGTY_hugetlb))
			bits |= BIT_HUGETLB;
	} else if (bpf_core_enum_value_exists(enum compound_dtor_id, HUGETLB_PAGE_DTOR) &&
		   bpf_core_field_exists(struct page, compound_dtor)) {
		u64 at = size + bpf_core_field_offset(struct page, compound_dtor);

		if (at < sizeof(s->head_pages) &&
		    s->head_pages[at] ==
			    bpf_core_enum_value(enum compound_dtor_id, HUGETLB_PAGE_DTOR))
			bits |= BIT_HUGETLB;
	}
	if (bpf_core_field_exists(struct page, mapping)) {
		u64 at = bpf_core_field_offset(struct page, mapping);

		if (at <= sizeof(s->head_pages) - 8) {
			u64 mapping = *(u64 *)(s->head_pages + at);

			bits |= mapping_bits(mapping) | memory_bits(mapping);
		}
	}
	if (bpf_core_field_exists(struct folio, _large_mapcount)) {
		u64 at = bpf_core_field_offset(struct folio, _large_mapcount);

		if (at <= sizeof(s->head_pages) - 4 && !*(u32 *)(s->head_pages + at))
			bits |= BIT_ALONE;
	}
	s->head = head;
	s->head_bits = bits;
	return bits;
}

/*
 * Reads a struct page where it lies: through a helper each read waits for memory, while plain loads of
 * several pages wait together. Linux 6.2 and newer have the cast (commit a35b9af4ec2c). Any type
 * that begins with words will do; a load of a field that is a pointer would yield no number.
 */
extern void *bpf_rdonly_cast(const void *address, u32 type) __ksym __weak;

static __always_inline u8 *struct_page(u64 address)
{
	return bpf_rdonly_cast((void *)address, bpf_core_type_id_kernel(struct pt_regs));
}

/* The first word of struct page on all kernels; memdesc_flags_t since 6.18 */
static __always_inline u64 page_flags(u8 *page)
{
	return *(u64 *)page;
}

static __always_inline u64 page_compound(u8 *page)
{
	if (!bpf_core_field_exists(struct page, compound_head))
		return 0;
	return *(u64 *)(page + bpf_core_field_offset(struct page, compound_head));
}

static __always_inline u32 page_count(u8 *page)
{
	return *(u32 *)(page + bpf_core_field_offset(struct page, _refcount));
}

static __always_inline u64 is_head(u64 flags)
{
	return bpf_core_enum_value_exists(enum pageflags, PG_head) &&
	       (flags >> bpf_core_enum_value(enum pageflags, PG_head)) & 1;
}

/* Of flags, compound heads and counts less one of several pages, each or-ed together */
static __always_inline u32 is_remarkable(u64 flags, u64 compound, u64 count)
{
	return flag_bits(flags) || is_head(flags) || compound & 1 || count >= PIN_BIAS;
}

static __always_inline void clear_look(struct scratch *s)
{
	__builtin_memset(&s->look, 0, sizeof(s->look));
	barrier();
}

/* Looks at the struct page of a frame; known stays clear where it could not be read like this */
static __always_inline void look_in_place(struct scratch *s, u64 frame)
{
	struct page_look *look = &s->look;
	u64 address = s->vmemmap + frame * bpf_core_type_size(struct page);
	u8 *page = struct_page(address);
	u64 compound = page_compound(page);
	u32 count = page_count(page);

	look->flags = page_flags(page);
	s->checks++;
	look->known = 1;
	if (compound & 1)
		look->head = compound - 1;
	else if (is_head(look->flags))
		look->head = address;
	if (look->head)
		return;
	/* A load that fails reads as 0, and the count of a page that is mapped is never 0 */
	if (!count)
		look->known = 0;
	look->bits = flag_bits(look->flags);
	if (look->bits)
		look->bits = whose(look->bits | owner_bits(page), look->flags);
	look->bits |= memory_bits(page_mapping(page));
	if (count >= PIN_BIAS)
		look->bits |= BIT_PINNED;
}

/* The same by a copy; first, count: a run of frames with it in it, to be read together */
static __always_inline void look_at_copy(struct scratch *s, u64 frame, u64 first, u64 count)
{
	struct page_look *look = &s->look;
	u64 size = bpf_core_type_size(struct page);
	u64 address = s->vmemmap + frame * size;
	u64 at, compound, offset;
	u8 *page;

	s->checks++;
	if (size > PAGE_STRUCT_MAX)
		return;
	at = frame - s->block_frame;
	if (at >= s->block_count) {
		/* All 64 bits: of a product of 32 the verifier of 6.1 does not know that it is not negative */
		u64 bytes = count * size;

		s->block_count = 0;
		if (count > 1 && bytes <= BLOCK_BYTES &&
		    !bpf_probe_read_kernel(s->block, bytes, (void *)(s->vmemmap + first * size))) {
			s->block_count = count;
			s->block_frame = first;
		} else if (!bpf_probe_read_kernel(s->block, size, (void *)address)) {
			s->block_count = 1;
			s->block_frame = frame;
		} else {
			s->check_failures++;
			return;
		}
		at = frame - s->block_frame;
	}
	offset = at * size;
	if (offset > BLOCK_BYTES - PAGE_STRUCT_MAX)
		return;
	page = s->block + offset;
	look->flags = *(u64 *)page;
	if (bpf_core_field_exists(struct page, compound_head)) {
		compound = *(u64 *)(page + bpf_core_field_offset(struct page, compound_head));
		if (compound & 1)
			look->head = compound - 1;
	}
	if (!look->head && is_head(look->flags))
		look->head = address;
	if (look->head)
		return;
	look->bits = flag_bits(look->flags);
	if (look->bits)
		look->bits = whose(look->bits | owner_bits(page), look->flags);
	look->bits |= memory_bits(page_mapping(page));
	if (*(u32 *)(page + bpf_core_field_offset(struct page, _refcount)) >= PIN_BIAS)
		look->bits |= BIT_PINNED;
}

/* The bits of what was looked at; in one place, as each copy of head_bits costs the verifier much */
static __always_inline u32 bits_of_look(struct scratch *s)
{
	struct page_look *look = &s->look;

	barrier();
	return look->head ? whose(head_bits(s, look->head), look->flags) : look->bits;
}

#endif
