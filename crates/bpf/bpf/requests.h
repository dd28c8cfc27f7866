/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * The walk takes the verifier some 15 ms in each program that has it. So one program has it for all that see pages go
 * (look_at_pages): they write down what to look at, and go on in that one, which ends what they began.
 */
#ifndef VARVE_REQUESTS_H
#define VARVE_REQUESTS_H

#define LOOK_AT_PAGES 0
#define NOTHING 1

#define REQUEST_ALL 1 /* all of the current process's memory */
#define REQUEST_RANGE 2 /* a range of some memory */
#define REQUEST_CALL 3 /* what a system call takes */

/* The current thread's end is reported when that is done */
#define ENDS 1
#define ENDS_PROCESS 2 /* it is its process's, too */
#define ENDS_WITH_MEMORY 4 /* it has its memory still */

struct request {
	u32 busy;
	u32 asked; /* it is whole, and nobody has taken it yet */
	u32 tid;
	u32 what;
	u64 time;
	u64 began; /* when the program began that asks, if that is timed; 0: it is not */
	u32 runs; /* for so many that stands */
	u32 ends;
	u32 cause;
	u32 owner; /* of a range's memory; 0: the current process */
	u64 mm;
	u64 start;
	u64 end;
	struct call call;
};

/* A program may be interrupted by another one on the same CPU: each has a request of its own, as it has a scratch */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, u32);
	__type(value, struct request);
} requests SEC(".maps");

/* What programs go on in: the loader puts it there. Behind it is nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(u32));
} continuations SEC(".maps");

/* Where there is none left, what was to be looked at is a loss */
static __always_inline struct request *new_request(u32 what, u32 cause)
{
	for (u32 slot = 0; slot < SLOTS; slot++) {
		u32 key = slot;
		struct request *q = bpf_map_lookup_elem(&requests, &key);

		if (q && !__sync_lock_test_and_set(&q->busy, 1)) {
			q->what = what;
			q->cause = cause;
			q->owner = 0;
			q->ends = 0;
			q->began = 0;
			return q;
		}
	}
	drop(DROP_VANISH_WALKS, 1);
	return NULL;
}

static __always_inline struct request *request_all(u32 cause)
{
	return cause == CAUSE_NONE ? NULL : new_request(REQUEST_ALL, cause);
}

static __always_inline struct request *request_range(u64 mm, u32 cause, u64 start, u64 end, u32 owner)
{
	struct request *q = new_request(REQUEST_RANGE, cause);

	if (!q)
		return NULL;
	q->mm = mm;
	q->start = start;
	q->end = end;
	q->owner = owner;
	return q;
}

/* Goes on in look_at_pages; comes back where the kernel did not take that program, which is a loss */
static __always_inline void hand_over(void *ctx, struct request *q, u64 began, u32 runs)
{
	q->began = began;
	q->runs = runs;
	q->tid = bpf_get_current_pid_tgid();
	q->time = bpf_ktime_get_ns();
	barrier();
	q->asked = 1;
	barrier();
	bpf_tail_call(ctx, &continuations, LOOK_AT_PAGES);
	q->asked = 0;
	q->busy = 0;
	drop(DROP_VANISH_WALKS, 1);
}

/*
 * The request of the program that goes on here. On this CPU there may be one of a thread that waits to go on, and one of this thread's
 * own that this program has interrupted: the latest of this thread's is it.
 */
static __always_inline struct request *asked_request(void)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct request *latest = NULL;
	u64 time = 0;

	for (u32 slot = 0; slot < SLOTS; slot++) {
		u32 key = slot;
		struct request *q = bpf_map_lookup_elem(&requests, &key);

		if (!q || !q->asked || q->tid != tid || q->time < time)
			continue;
		time = q->time;
		latest = q;
	}
	if (latest)
		latest->asked = 0;
	return latest;
}

#endif
