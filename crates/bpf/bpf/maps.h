/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
#ifndef VARVE_MAPS_H
#define VARVE_MAPS_H

#define BLOCK_PAGES 16
#define PAGE_STRUCT_MAX 80
#define BLOCK_BYTES (BLOCK_PAGES * PAGE_STRUCT_MAX)

/*
 * What the struct page of a frame shows: of a page that is part of a folio, where the bits are to be looked for. In the
 * scratch and not on the stack: of what it reads from there the verifier knows nothing, and so it does not follow each
 * of the ways by which that came about.
 */
struct page_look {
	u64 flags;
	u64 head; /* address of the struct page of the folio's first page; 0: the page is a folio by itself */
	u32 bits;
	u32 known;
};

/* All that one walk works with; 25 KiB, so not on the stack. Per-CPU values are limited to 32 KiB. */
struct scratch {
	u32 busy;
	u32 to_ring; /* vanish records instead of the output map */
	u64 cursor;
	u64 end;
	u64 pgd; /* kernel address of the top table */
	u64 direct;
	u64 frame_mask;
	u64 vmemmap;
	u32 levels;
	u32 options;
	u32 whole; /* copy whole tables; else single entries, for short ranges */
	u32 ring_wake;
	u32 reached; /* whatever is present counts as accessed */
	u32 wants_residents;
	u32 says_ranges; /* in the records, what was looked at and goes */
	/* which table each copy holds */
	u64 at5, at4, at3, at2;
	/* sums */
	u64 present;
	u64 checks;
	u64 check_failures;
	u64 table_failures;
	u32 out_count;
	u32 out_max;
	u32 full;
	u32 batch_pages;
	u64 residents;
	u64 most; /* so many pages present, and the walk stops */
	/* struct pages read last */
	u64 block_frame;
	u64 block_count;
	u64 head;
	u32 head_bits;
	u32 pad;
	struct page_look look;
	struct region region;
	u64 there[8]; /* struct resident of it */
	u64 memory;   /* of 64 pages, those that are cold and anonymous */
	u64 t5[512];
	u64 t4[512];
	u64 t3[512];
	u64 t2[512];
	u64 t1[512];
	u8 block[BLOCK_BYTES];
	u8 head_pages[2 * PAGE_STRUCT_MAX];
	struct rec_vanish batch;
};

#define SLOTS 2

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct settings);
} settings SEC(".maps");

/* The walk program runs in the recorder alone, so it needs one scratch, not one per CPU */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct scratch);
} walk_scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, u32);
	__type(value, struct scratch);
} hook_scratch SEC(".maps");

struct stack_scratch {
	u32 busy;
	u32 pad;
	struct rec_mapping m;
	u8 stack[STACK_MAX + 4096]; /* the last read may be seen to end behind it */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, u32);
	__type(value, struct stack_scratch);
} stack_scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct region);
} regions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct resident);
} residents SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, struct tracked);
} tracked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, struct exempt);
} exempt SEC(".maps");

struct pending {
	u64 entered;
	u64 before;
	/* Where calls are not seen to return: what the kernel was seen to do meanwhile */
	u64 area; /* an address that it chose, 0: none */
	u64 low;  /* the first range of mappings that it changed; none before `high` is set */
	u64 high;
};

/* Mapping calls under way, by thread */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, struct pending);
} pending SEC(".maps");

/* Threads that open a file to cut it to nothing, until they have */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, u8);
} opening SEC(".maps");

/* How many those are: most calls of most processes need not look there */
static volatile u32 openings;

/* Whether a tracked process opened a file that is a process's memory; others' reading is then not looked at */
static volatile u32 memory_files;

/* Threads that reached their end, until sched_process_exit */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, u8);
} announced SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DROP_KINDS);
	__type(key, u32);
	__type(value, u64);
} drops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} ring SEC(".maps");

static __always_inline void drop(u32 kind, u64 count)
{
	u64 *value = bpf_map_lookup_elem(&drops, &kind);

	if (value)
		__sync_fetch_and_add(value, count);
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct report_cost);
} report_cost SEC(".maps");

/* One run in so many is timed, and stands for them all */
#define TIMED_EVERY 16

/* When this run of a program began, if it is timed; 0: it is not */
static __always_inline u64 report_begins(void)
{
	/* Programs run in patterns, which a count would fall in step with */
	return bpf_get_prandom_u32() % TIMED_EVERY ? 0 : bpf_ktime_get_ns();
}

/* A run is over that stands for so many */
static __always_inline int timed(u64 began, u32 runs)
{
	struct report_cost *cost;
	u32 zero = 0;

	cost = bpf_map_lookup_elem(&report_cost, &zero);
	if (cost) {
		__sync_fetch_and_add(&cost->ns, (bpf_ktime_get_ns() - began) * runs);
		__sync_fetch_and_add(&cost->runs, runs);
	}
	return 0;
}

static __always_inline int report_ends(u64 began)
{
	return began ? timed(began, TIMED_EVERY) : 0;
}

/*
 * The recorder drains the ring once per interval by itself: waking it for each record would only
 * slow the target down. It is woken when the ring fills.
 */
static __always_inline u64 wake(u32 limit)
{
	return bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) >= limit ? BPF_RB_FORCE_WAKEUP
								    : BPF_RB_NO_WAKEUP;
}

static __always_inline struct settings *get_settings(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

/* Whether pages of tracked processes are looked at as they go: else nothing that others do concerns them */
static __always_inline int looks_at_pages(void)
{
	struct settings *g = get_settings();

	return g && g->options & OPT_PAGES;
}

#endif
