/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* System calls: numbers to operations, and the mapping records */
#ifndef VARVE_CALLS_H
#define VARVE_CALLS_H

/* One program sees all system calls, so this table has to sort out the rest at once */
static const u8 ops64[512] = {
	[9] = OP_MMAP,	     [11] = OP_MUNMAP,	 [12] = OP_BRK,	      [25] = OP_MREMAP,
	[28] = OP_MADVISE,   [30] = OP_SHMAT,	 [59] = OP_EXEC,      [60] = OP_EXIT,
	[67] = OP_SHMDT,     [76] = OP_TRUNCATE, [77] = OP_FTRUNCATE, [216] = OP_REMAP_FILE,
	[231] = OP_EXIT,     [285] = OP_FALLOCATE, [322] = OP_EXECAT, [440] = OP_PROCESS_MADVISE,
	[2] = OP_OPEN,	     [85] = OP_CREAT,	 [257] = OP_OPENAT,   [437] = OP_OPENAT2,
	[16] = OP_IOCTL,     [101] = OP_PTRACE,	 [310] = OP_PROCESS_VM, [311] = OP_PROCESS_VM,
	[448] = OP_PROCESS_MRELEASE,
};

static const u8 ops32[512] = {
	[1] = OP_EXIT,	      [11] = OP_EXEC,	   [45] = OP_BRK,	   [90] = OP_OLD_MMAP,
	[91] = OP_MUNMAP,     [92] = OP_TRUNCATE,  [93] = OP_FTRUNCATE,    [117] = OP_IPC,
	[163] = OP_MREMAP,    [192] = OP_MMAP,	   [193] = OP_TRUNCATE,    [194] = OP_FTRUNCATE,
	[219] = OP_MADVISE,   [252] = OP_EXIT,	   [257] = OP_REMAP_FILE,  [324] = OP_FALLOCATE,
	[358] = OP_EXECAT,    [397] = OP_SHMAT,	   [398] = OP_SHMDT,	   [440] = OP_PROCESS_MADVISE,
	[5] = OP_OPEN,	      [8] = OP_CREAT,	   [295] = OP_OPENAT,	   [437] = OP_OPENAT2,
	[26] = OP_PTRACE,     [54] = OP_IOCTL,	   [347] = OP_PROCESS_VM,  [348] = OP_PROCESS_VM,
	[448] = OP_PROCESS_MRELEASE,
};

/* Looked at only once somebody opened a file that is a process's memory: everybody reads and writes */
static const u8 files64[512] = {
	[0] = OP_READ,	   [1] = OP_READ,     [17] = OP_PREAD,	 [18] = OP_PREAD,
	[19] = OP_READV,   [20] = OP_READV,   [295] = OP_PREADV, [296] = OP_PREADV,
	[327] = OP_PREADV, [328] = OP_PREADV,
};

static const u8 files32[512] = {
	[3] = OP_READ,	   [4] = OP_READ,     [180] = OP_PREAD,	 [181] = OP_PREAD,
	[145] = OP_READV,  [146] = OP_READV,  [333] = OP_PREADV, [334] = OP_PREADV,
	[378] = OP_PREADV, [379] = OP_PREADV,
};

#define TS_COMPAT 2
#define X32_BIT 0x40000000
#define IPC_SHMAT 21
#define IPC_SHMDT 22

static __always_inline int may_be_of_memory_file(u32 number)
{
	return memory_files && (files64[number & 511] || files32[number & 511]);
}

static __always_inline int interesting(u32 number)
{
	return ops64[number & 511] || ops32[number & 511];
}

/* Whether the current thread's call may take pages from a process that is not the caller */
static __always_inline int reaches_others(u32 number)
{
	u32 status = BPF_CORE_READ(current_task(), thread_info.status);
	u32 op = status & TS_COMPAT ? ops32[number & 511] : ops64[number & 511];

	return op == OP_MADVISE || op == OP_PROCESS_MADVISE || op == OP_PROCESS_MRELEASE || op == OP_TRUNCATE ||
	       op == OP_FTRUNCATE || op == OP_FALLOCATE || (op >= OP_OPEN && op <= OP_CREAT);
}

/* Operation and arguments of the system call that the current thread is in. Not inline: the registers take a third of the stack */
__noinline int decode(struct call *c, u64 registers, u32 number)
{
	struct pt_regs r;
	u32 status = BPF_CORE_READ(current_task(), thread_info.status);

	if (!c || bpf_probe_read_kernel(&r, sizeof(r), (void *)registers))
		return 0;
	if (!(status & TS_COMPAT)) {
		c->op = ops64[number & 511];
		if (!c->op && memory_files)
			c->op = files64[number & 511];
		c->wide = 8;
		c->args[0] = r.di;
		c->args[1] = r.si;
		c->args[2] = r.dx;
		c->args[3] = r.r10;
		c->args[4] = r.r8;
		c->args[5] = r.r9;
		return c->op;
	}
	c->op = ops32[number & 511];
	if (!c->op && memory_files)
		c->op = files32[number & 511];
	c->wide = 4;
	c->args[0] = (u32)r.bx;
	c->args[1] = (u32)r.cx;
	c->args[2] = (u32)r.dx;
	c->args[3] = (u32)r.si;
	c->args[4] = (u32)r.di;
	c->args[5] = (u64)(u32)r.bp << 12; /* mmap2 counts in pages */
	if (c->op == OP_OLD_MMAP) {
		u32 in[6] = {};

		bpf_probe_read_user(in, sizeof(in), (void *)c->args[0]);
		for (int i = 0; i < 6; i++)
			c->args[i] = in[i];
		c->op = OP_MMAP;
	}
	if (c->op == OP_IPC) {
		u32 what = c->args[0] & 0xffff;

		c->op = what == IPC_SHMAT ? OP_SHMAT : what == IPC_SHMDT ? OP_SHMDT : 0;
		c->args[0] = what == IPC_SHMAT ? c->args[1] : c->args[4];
		/* The flags are the third argument already */
		c->args[1] = c->args[4];
	}
	return c->op;
}

static __always_inline int is_mark(struct call *c)
{
	u64 what = c->args[1] & MARK_WHAT;

	return c->op == OP_BRK && !c->args[0] && (c->args[1] & ~(u64)MARK_WHAT) == MARK_WORD && what >= MARK_BEGIN && what <= MARK_EVENT;
}

/* The program says that a phase begins or ends, or that something has happened */
__noinline int emit_mark(struct call *c)
{
	struct settings *g = get_settings();
	struct rec_mark *rec;
	u32 bytes;

	if (!c || !g)
		return 0;
	rec = bpf_ringbuf_reserve(&ring, sizeof(*rec), 0);
	if (!rec) {
		drop(DROP_MARK, 1);
		return 0;
	}
	fill(&rec->r, REC_MARK, c->args[1] & MARK_WHAT);
	rec->bytes = c->args[3] > 0xffffffff ? 0xffffffff : c->args[3];
	bytes = rec->bytes;
	if (bytes > MARK_NAME_BYTES)
		bytes = MARK_NAME_BYTES;
	__builtin_memset(rec->name, 0, sizeof(rec->name));
	/* True already, but older verifiers have to be shown, in the register that is used */
	barrier_var(bytes);
	if (bytes > MARK_NAME_BYTES)
		bytes = 0;
	rec->there = bytes;
	if (bytes && bpf_probe_read_user(rec->name, bytes, (void *)c->args[2]))
		rec->there = 0;
	bpf_ringbuf_submit(rec, wake(g->ring_wake));
	return 0;
}

static __always_inline struct stack_scratch *take_stack(void)
{
	for (u32 slot = 0; slot < SLOTS; slot++) {
		u32 key = slot;
		struct stack_scratch *s = bpf_map_lookup_elem(&stack_scratch, &key);

		if (s && !__sync_lock_test_and_set(&s->busy, 1))
			return s;
	}
	return 0;
}

/*
 * Copies the user stack, page by page: it may end, or a page may be swapped out. `most` is a constant, and `stack` has
 * 4096 bytes more than that: the last read may be seen to end behind it.
 */
static __always_inline u32 copy_stack(u8 *stack, const u32 most, u64 sp, u32 wanted)
{
	u32 have = 0;

	if (wanted > most)
		wanted = most;
	for (u32 i = 0; i < most / 4096 + 1; i++) {
		u32 part = 4096 - ((sp + have) & 4095);

		if (have >= wanted)
			break;
		if (part > wanted - have)
			part = wanted - have;
		/* True already, but older verifiers have to be shown, in the registers that are used */
		barrier_var(part);
		barrier_var(have);
		if (part > 4096 || have > most)
			break;
		if (bpf_probe_read_user(stack + have, part, (void *)(sp + have)))
			break;
		have += part;
	}
	return have;
}

static __noinline int emit_mapping(struct call *c, void *registers, s64 result, u32 flags)
{
	struct settings *g = get_settings();
	struct stack_scratch *s;
	struct pending *p;
	struct pt_regs r;
	u32 pid = bpf_get_current_pid_tgid() >> 32, tid = bpf_get_current_pid_tgid(), stack = 0;
	u64 bytes, word;

	if (!c || !g)
		return 0;
	s = take_stack();
	if (!s) {
		drop(DROP_MAPPING, 1);
		return 0;
	}
	fill(&s->m.r, REC_MAPPING, c->op);
	s->m.entered = s->m.r.time;
	s->m.before = 0;
	p = bpf_map_lookup_elem(&pending, &tid);
	if (p) {
		s->m.entered = p->entered;
		s->m.before = p->before;
		bpf_map_delete_elem(&pending, &tid);
	}
	for (int i = 0; i < 6; i++)
		s->m.args[i] = c->args[i];
	s->m.result = result;
	s->m.flags = 0;
	if ((counts_operations(pid) || flags & TRACK_STACKS) && !bpf_probe_read_kernel(&r, sizeof(r), registers)) {
		if (find_running(pid, r.sp, &word) && word && word != COUNTING)
			s->m.flags |= MAPPING_OF_OPERATION;
		if (flags & TRACK_STACKS) {
			s->m.ip = r.ip;
			s->m.sp = r.sp;
			s->m.bp = r.bp;
			s->m.saved[0] = r.bx;
			s->m.saved[1] = r.r12;
			s->m.saved[2] = r.r13;
			s->m.saved[3] = r.r14;
			s->m.saved[4] = r.r15;
			s->m.flags |= MAPPING_HAS_STACK;
			stack = copy_stack(s->stack, STACK_MAX, r.sp, g->stack_bytes);
		}
	}
	s->m.stack_bytes = stack;
	bytes = sizeof(s->m) + (stack & ~7u);
	if (bytes > sizeof(s->m) + STACK_MAX)
		bytes = sizeof(s->m) + STACK_MAX;
	if (bpf_ringbuf_output(&ring, &s->m, bytes, wake(g->ring_wake)))
		drop(DROP_MAPPING, 1);
	s->busy = 0;
	return 0;
}

#endif
