/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * Allocator operations, counted by programs at the beginning and the end of the allocator's functions: for processes into which nothing can
 * be preloaded. They add to what the preload library's tables have, too. What a function is and where its arguments are the cookie of its
 * probe says.
 */
#ifndef VARVE_UPROBES_H
#define VARVE_UPROBES_H

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct probed_row_key);
	__type(value, struct probed_row);
} probed_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct probed_time_key);
	__type(value, u64);
} probed_times SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct probed_block_key);
	__type(value, struct probed_block);
} probed_blocks SEC(".maps");

/* Numbers of preload-abi's Operation */
#define PROBED_REALLOC 3
#define PROBED_REALLOCARRAY 4
#define PROBED_ALIGNED_ALLOC 5
#define PROBED_PVALLOC 9
#define PROBED_NEW_ALIGNED 12
#define PROBED_FREE 16
#define PROBED_USABLE_SIZE 20
#define PROBED_REALLOC_FREE 21
#define PROBED_TRIM 22

/* Kinds of times, likewise; of an allocation it is not known whether a block had begun there before */
#define KIND_ALLOCATION 1
#define KIND_FREE 2
#define KIND_REALLOC 3
#define KIND_ALIGNED 4
#define KIND_NONE 5

#define FAILED_CLASS 255
#define TIME_BUCKETS 256

/*
 * How long the current thread has been ready to run without a CPU: what other programs take, which is no time of its calls.
 * Kernels without CONFIG_SCHED_INFO do not count it.
 */
static __always_inline u64 queued_so_far(void)
{
	struct task_struct *task = current_task();

	if (!bpf_core_field_exists(struct sched_info, run_delay))
		return 0;
	return BPF_CORE_READ(task, sched_info.run_delay);
}

/* An operator and the function that it calls are this close on the stack */
#define ANNOUNCED_WITHIN 512

static __always_inline u32 log2_of(u64 value)
{
	u32 bits = 0;

	if (value >> 32) {
		bits += 32;
		value >>= 32;
	}
	if (value >> 16) {
		bits += 16;
		value >>= 16;
	}
	if (value >> 8) {
		bits += 8;
		value >>= 8;
	}
	if (value >> 4) {
		bits += 4;
		value >>= 4;
	}
	if (value >> 2) {
		bits += 2;
		value >>= 2;
	}
	return bits + (value >> 1);
}

/* class_of of preload-abi */
static __always_inline u32 class_of(u64 bytes)
{
	u32 bits;

	if (bytes <= 1024)
		return (bytes + 15) / 16;
	bits = log2_of(bytes - 1);
	if (bits > 56)
		return FAILED_CLASS - 1;
	bits = 65 + (bits - 10) * 4 + ((bytes - 1) >> (bits - 2) & 3);
	return bits < FAILED_CLASS ? bits : FAILED_CLASS - 1;
}

/* bucket_of of preload-abi, of nanoseconds */
static __always_inline u32 bucket_of(u64 ns)
{
	u32 bits;

	if (ns < 16)
		return ns;
	bits = log2_of(ns);
	bits = 16 + (bits - 4) * 8 + (ns >> (bits - 3) & 7);
	return bits < TIME_BUCKETS ? bits : TIME_BUCKETS - 1;
}

static __always_inline u32 kind_of(u32 operation)
{
	if (operation >= PROBED_FREE)
		return operation == PROBED_USABLE_SIZE ? KIND_NONE : KIND_FREE;
	if (operation == PROBED_REALLOC || operation == PROBED_REALLOCARRAY)
		return KIND_REALLOC;
	if ((operation >= PROBED_ALIGNED_ALLOC && operation <= PROBED_PVALLOC) || operation == PROBED_NEW_ALIGNED)
		return KIND_ALIGNED;
	return KIND_ALLOCATION;
}

static __always_inline u64 argument(struct pt_regs *ctx, u32 which)
{
	u64 di = ctx->di, si = ctx->si, dx = ctx->dx, cx = ctx->cx;

	/* The verifier takes no load from a place that was chosen */
	barrier_var(di);
	barrier_var(si);
	barrier_var(dx);
	barrier_var(cx);
	return which == 1 ? di : which == 2 ? si : which == 3 ? dx : which == 4 ? cx : 0;
}

/* The current thread's; made where it is not there */
static __always_inline struct probed_thread *probed_thread(struct probed_process *p, u32 tid)
{
	struct probed_thread fresh = { .image = p->image }, *t = bpf_map_lookup_elem(&probed_threads, &tid);

	if (t)
		return t;
	bpf_map_update_elem(&probed_threads, &tid, &fresh, BPF_NOEXIST);
	t = bpf_map_lookup_elem(&probed_threads, &tid);
	if (t)
		__sync_fetch_and_add(&p->threads, 1);
	else
		__sync_fetch_and_add(&p->uncounted, 1);
	return t;
}

static __always_inline void probed_thread_ended(u32 pid, u32 tid)
{
	struct probed_thread *t = probe_every ? bpf_map_lookup_elem(&probed_threads, &tid) : NULL;
	struct probed_process *p;

	if (!t)
		return;
	p = bpf_map_lookup_elem(&probed, &pid);
	if (p && p->image == t->image)
		__sync_fetch_and_add(&p->threads, -1);
	bpf_map_delete_elem(&probed_threads, &tid);
}

/* A tracked process runs another program: nothing of the one before lives */
static __always_inline void probed_program_began(u32 pid)
{
	struct tracked *t = probe_every ? bpf_map_lookup_elem(&tracked, &pid) : NULL;
	struct probed_process fresh = {};
	u32 tid = bpf_get_current_pid_tgid();

	if (!t)
		return;
	bpf_map_delete_elem(&probed_threads, &tid);
	fresh.image = t->image;
	if (bpf_map_update_elem(&probed, &pid, &fresh, BPF_ANY))
		drop(DROP_OPERATION, 1);
}

/* A child begins with its parent's blocks */
SEC("raw_tp/sched_process_fork")
int operation_process_fork(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *child = (struct task_struct *)ctx->args[1];
	u32 parent = bpf_get_current_pid_tgid() >> 32, pid = BPF_CORE_READ(child, tgid);
	struct probed_process *p, fresh;
	struct tracked *t;

	if (!probe_every || pid == parent)
		return 0;
	p = bpf_map_lookup_elem(&probed, &parent);
	t = bpf_map_lookup_elem(&tracked, &pid);
	/* Until it runs another program, one in the same memory does what its parent does */
	if (!p || !t || BPF_CORE_READ(child, mm) == BPF_CORE_READ(current_task(), mm))
		return 0;
	__builtin_memcpy(&fresh, p, sizeof(fresh));
	fresh.parent = parent;
	fresh.parent_image = p->image;
	fresh.image = t->image;
	fresh.born = bpf_ktime_get_ns();
	fresh.peak_requested = fresh.requested;
	fresh.peak_usable = fresh.usable;
	fresh.peak_ns = fresh.born;
	fresh.uncounted_before += fresh.uncounted;
	fresh.uncounted = 0;
	fresh.unknown_frees = 0;
	fresh.unseen_frees = 0;
	fresh.operations = 0;
	fresh.threads = 0;
	if (bpf_map_update_elem(&probed, &pid, &fresh, BPF_ANY))
		drop(DROP_OPERATION, 1);
	return 0;
}

/* How much of a block can be used, by the word before it; 0: that does not look like one of glibc's */
static __always_inline u64 usable_by_header(u64 at, u64 requested)
{
	u64 word = 0, bytes;

	if (bpf_probe_read_user(&word, sizeof(word), (void *)(at - 8)))
		return 0;
	bytes = word & ~7ull;
	/* One with a mapping of its own has no neighbour whose first word it could use */
	bytes -= word & 2 ? 16 : 8;
	return bytes >= requested && bytes >> 47 == 0 ? bytes : 0;
}

/* Looks up a block that goes, and forgets it */
static __always_inline void take_block(struct probed_process *p, struct probed_thread *t, u32 pid, u32 headers)
{
	struct probed_block_key key = { .address = t->old, .image = p->image, .pid = pid };
	struct probed_block *found = bpf_map_lookup_elem(&probed_blocks, &key);

	t->is_known = 0;
	t->gone.requested = 0;
	t->gone.usable = 0;
	if (found) {
		t->gone = *found;
		t->is_known = 1;
		bpf_map_delete_elem(&probed_blocks, &key);
		return;
	}
	if (p->parent_image) {
		/* It may be one of those that were there at the fork */
		key.pid = p->parent;
		key.image = p->parent_image;
		found = bpf_map_lookup_elem(&probed_blocks, &key);
		if (found && found->born < p->born) {
			t->gone = *found;
			t->is_known = 1;
			return;
		}
	}
	__sync_fetch_and_add(&p->unknown_frees, 1);
	if (headers) {
		t->gone.usable = usable_by_header(t->old, 0);
		t->gone.requested = t->gone.usable;
	}
}

static __always_inline void add_live(struct probed_process *p, s64 requested, s64 usable, s64 blocks)
{
	s64 now = __sync_fetch_and_add(&p->requested, requested) + requested;
	s64 could = __sync_fetch_and_add(&p->usable, usable) + usable;

	if (blocks)
		__sync_fetch_and_add(&p->blocks, blocks);
	if (now > p->peak_requested) {
		p->peak_requested = now;
		p->peak_usable = could;
		p->peak_ns = bpf_ktime_get_ns();
	}
}

static __always_inline void note_block(struct probed_process *p, u32 pid, u64 at, u64 requested, u64 usable)
{
	struct probed_block_key key = { .address = at, .image = p->image, .pid = pid };
	struct probed_block block = { .requested = requested, .usable = usable, .born = bpf_ktime_get_ns() };
	struct probed_block *before = bpf_map_lookup_elem(&probed_blocks, &key);

	/* Nobody saw it freed */
	if (before) {
		__sync_fetch_and_add(&p->unseen_frees, 1);
		add_live(p, -before->requested, -before->usable, -1);
	}
	/* What lives is not known from here on */
	if (bpf_map_update_elem(&probed_blocks, &key, &block, BPF_ANY)) {
		__sync_fetch_and_add(&p->uncounted, 1);
		return;
	}
	add_live(p, requested, usable, 1);
}

SEC("uprobe")
int allocator_entered(struct pt_regs *ctx)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32, tid = bpf_get_current_pid_tgid(), which;
	struct probed_process *p = bpf_map_lookup_elem(&probed, &pid);
	struct probed_thread *t;
	u64 what, word, announced, site = 0, sp = ctx->sp, back = 0;

	if (!p || !probe_every)
		return 0;
	what = bpf_get_attach_cookie(ctx);
	t = probed_thread(p, tid);
	if (!t)
		return 0;
	/* An operation within another one is that one's, also where the other jumps here instead of calling */
	if (still_runs(t, sp))
		return 0;
	t->word = 0;
	bpf_probe_read_user(&site, sizeof(site), (void *)sp);
	word = (what & PROBE_OPERATION) << 47 | (site & SITE_MASK);
	announced = t->announced;
	if (announced && sp <= t->announced_at && t->announced_at - sp < ANNOUNCED_WITHIN &&
	    !bpf_probe_read_user(&back, sizeof(back), (void *)t->announced_at) &&
	    (back & SITE_MASK) == (announced & SITE_MASK))
		word = announced;
	else
		announced = 0;
	if (what & PROBE_ANNOUNCES) {
		/* Of operators that call each other it is the first one's */
		if (!announced) {
			t->announced = word;
			t->announced_at = sp;
		}
		return 0;
	}
	t->announced = 0;
	which = what >> PROBE_SIZE_SHIFT & PROBE_ARGUMENT;
	t->requested = argument(ctx, which);
	which = what >> PROBE_TIMES_SHIFT & PROBE_ARGUMENT;
	if (which) {
		u64 times = argument(ctx, which), most = times ? ~0ull / times : ~0ull;

		/* Else clang multiplies in 128 bits, which is a call */
		barrier_var(most);
		/* A product that is too large is refused, and ends no block */
		if (t->requested > most)
			t->requested = ~0ull;
		else
			t->requested *= times;
	}
	t->stores = what & PROBE_STORES ? ctx->di : 0;
	which = what >> PROBE_OLD_SHIFT & PROBE_ARGUMENT;
	t->old = argument(ctx, which);
	t->gone.requested = 0;
	t->gone.usable = 0;
	t->is_known = 0;
	if (t->old)
		take_block(p, t, pid, !!(what & PROBE_HEADERS));
	t->returns = !!(what & PROBE_AT_RETURN);
	t->steps = !!(what & PROBE_STEPS);
	t->stack = sp;
	/* One call of malloc_trim may take as long as all other operations */
	t->timed = probe_every <= 1 || (what & PROBE_OPERATION) == PROBED_TRIM || bpf_get_prandom_u32() % probe_every == 0;
	t->word = word;
	t->queued = t->timed ? queued_so_far() : 0;
	t->began = t->timed ? bpf_ktime_get_ns() : 0;
	return 0;
}

/* The row of what runs on the current thread and a size class, made where it is not there. Only this thread adds to it */
static __always_inline struct probed_row *row_of(struct probed_process *p, struct probed_thread *t, u32 pid, u32 tid, u32 class)
{
	struct probed_row_key key = { .word = t->word, .image = p->image, .pid = pid, .tid = tid, .class = class };
	struct probed_row fresh = {}, *row = bpf_map_lookup_elem(&probed_rows, &key);

	if (row)
		return row;
	bpf_map_update_elem(&probed_rows, &key, &fresh, BPF_NOEXIST);
	row = bpf_map_lookup_elem(&probed_rows, &key);
	if (!row)
		__sync_fetch_and_add(&p->uncounted, 1);
	return row;
}

/* The size class of the block that goes */
static __always_inline u32 class_of_gone(struct probed_thread *t, u32 headers)
{
	return class_of(headers ? t->gone.usable : t->gone.requested);
}

/* A change of size has ended its block */
static __always_inline void count_reallocated(struct probed_process *p, struct probed_thread *t, u32 pid, u32 tid, u32 headers)
{
	struct probed_row *row = row_of(p, t, pid, tid, class_of_gone(t, headers));

	if (row)
		row->reallocated += 1;
}

static __always_inline void count_operation(struct probed_process *p, struct probed_thread *t, u32 pid, u32 tid, u32 class,
					    u64 requested, u64 usable, s64 took)
{
	struct probed_row *row = row_of(p, t, pid, tid, class);
	u32 kind;

	__sync_fetch_and_add(&p->operations, 1);
	if (!row)
		return;
	row->count += 1;
	row->requested += requested;
	row->usable += usable;
	if (p->threads > 1)
		row->parallel += 1;
	if (!t->timed || class == FAILED_CLASS)
		return;
	row->timed += 1;
	row->ns += took;
	if (took < 0)
		took = 0;
	kind = kind_of(t->word >> 47 & 31);
	if (kind != KIND_NONE) {
		struct probed_time_key at = { .pid = pid, .kind = kind, .bucket = bucket_of(took) };
		u64 none = 0, *times = bpf_map_lookup_elem(&probed_times, &at);

		if (!times) {
			bpf_map_update_elem(&probed_times, &at, &none, BPF_NOEXIST);
			times = bpf_map_lookup_elem(&probed_times, &at);
		}
		if (times)
			__sync_fetch_and_add(times, 1);
	}
}

/* Of a function that allocates, or changes the size of a block */
static __always_inline void end_allocation(struct probed_process *p, struct probed_thread *t, u32 pid, u32 tid, u64 result,
					   u32 headers, s64 took)
{
	u64 usable = 0, requested = t->requested;

	if (!result) {
		/* What could not be changed lives on */
		if (t->is_known) {
			struct probed_block_key key = { .address = t->old, .image = p->image, .pid = pid };

			if (bpf_map_update_elem(&probed_blocks, &key, &t->gone, BPF_ANY))
				__sync_fetch_and_add(&p->uncounted, 1);
		}
		count_operation(p, t, pid, tid, FAILED_CLASS, 0, 0, 0);
		return;
	}
	if (t->old)
		count_reallocated(p, t, pid, tid, headers);
	if (headers)
		usable = usable_by_header(result, requested);
	if (usable < requested)
		usable = headers ? requested : 0;
	count_operation(p, t, pid, tid, class_of(headers ? usable : requested), requested, usable, took);
	if (t->is_known)
		add_live(p, -(s64)t->gone.requested, -(s64)t->gone.usable, -1);
	note_block(p, pid, result, requested, usable);
}

SEC("uprobe")
int allocator_returned(struct pt_regs *ctx)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32, tid = bpf_get_current_pid_tgid(), operation, headers;
	struct probed_thread *t = bpf_map_lookup_elem(&probed_threads, &tid);
	u64 what, stack, result = ctx->ax;
	s64 took = 0;
	struct probed_process *p;

	if (!t || !t->word)
		return 0;
	if (t->timed)
		took = bpf_ktime_get_ns() - t->began - (t->steps ? probe_within_steps : probe_within) -
		       (queued_so_far() - t->queued);
	what = bpf_get_attach_cookie(ctx);
	stack = what & PROBE_AT_RETURN ? ctx->sp : ctx->sp - 8;
	if (stack < t->stack)
		return 0;
	p = bpf_map_lookup_elem(&probed, &pid);
	/* Of an operation further out than the one that was left without an end */
	if (stack > t->stack || !p) {
		t->word = 0;
		return 0;
	}
	operation = t->word >> 47 & 31;
	headers = !!(what & PROBE_HEADERS);
	if (t->stores && (result || bpf_probe_read_user(&result, sizeof(result), (void *)t->stores)))
		result = 0;
	/* C leaves open what a change to nothing does: where nothing came of it the block was freed */
	if (operation < PROBED_FREE && !result && t->old && !t->requested) {
		operation = PROBED_REALLOC_FREE;
		t->word = (u64)PROBED_REALLOC_FREE << 47 | (t->word & SITE_MASK);
	}
	if (operation >= PROBED_FREE) {
		count_operation(p, t, pid, tid, class_of_gone(t, headers), t->gone.requested, t->gone.usable, took);
		if (t->is_known)
			add_live(p, -(s64)t->gone.requested, -(s64)t->gone.usable, -1);
	} else {
		end_allocation(p, t, pid, tid, result, headers, took);
	}
	t->word = 0;
	return 0;
}

struct forget_context {
	u64 image;
	u32 pid;
};

static long forget_block(void *map, struct probed_block_key *key, struct probed_block *block, struct forget_context *c)
{
	if (key->pid == c->pid && key->image == c->image)
		bpf_map_delete_elem(map, key);
	return 0;
}

SEC("syscall")
int change_probes(struct probe_args *a)
{
	u32 pid = a->pid;
	u64 image = a->image;
	struct tracked *t = bpf_map_lookup_elem(&tracked, &pid);
	struct forget_context c = { .image = image, .pid = pid };
	struct probed_process fresh = {}, *known = bpf_map_lookup_elem(&probed, &pid);

	/* The verifier takes no load from a place that was chosen */
	barrier_var(image);
	a->done = 1;
	if (a->what == PROBE_EVERY) {
		probe_within = a->within;
		probe_within_steps = a->within_steps;
		probe_every = a->every;
	} else if (a->what == PROBE_BEGIN) {
		/* One that was forked meanwhile is there already */
		fresh.image = image;
		if (t)
			fresh.image = t->image;
		if (!known)
			a->done = bpf_map_update_elem(&probed, &pid, &fresh, BPF_NOEXIST) == 0;
	} else if (a->what == PROBE_FORGET) {
		if (known && known->image == image)
			bpf_map_delete_elem(&probed, &pid);
		bpf_for_each_map_elem(&probed_blocks, forget_block, &c, 0);
	}
	return 0;
}

#endif
