/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* Samples of what a thread is doing, by the clock of each CPU */
#ifndef VARVE_SAMPLES_H
#define VARVE_SAMPLES_H

struct sample_scratch {
	struct rec_sample s;
	u8 stack[SAMPLE_STACK_MAX + 4096]; /* the last read may be seen to end behind it */
};

/* The clock's interrupt does not interrupt itself: one per CPU is enough */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct sample_scratch);
} sample_scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct sample_cost);
} sample_cost SEC(".maps");

/* Nanoseconds from one sample to the next. The context's own `sample_period` stays what it was at the opening of the event */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} sample_period SEC(".maps");

/* A ring of their own: samples may be lost, and must not take the place of what may not */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} sample_ring SEC(".maps");

SEC("perf_event")
int sample_clock(struct bpf_perf_event_data *ctx)
{
	struct settings *g = get_settings();
	struct tracked *t = tracked_current();
	struct task_struct *task;
	struct sample_scratch *s;
	u32 zero = 0, where = SAMPLE_USER, stack;
	struct sample_cost *cost;
	struct pt_regs r;
	u64 bytes, began, *period;

	if (!t || !g || !(t->flags & TRACK_SAMPLES))
		return 0;
	began = bpf_ktime_get_ns();
	task = current_task();
	/* The user's registers: where the kernel was interrupted they lie on its stack */
	if (bpf_probe_read_kernel(&r, sizeof(r), (void *)bpf_task_pt_regs(bpf_get_current_task_btf())))
		return 0;
	if (!(ctx->regs.cs & 3))
		where = (s64)r.orig_ax >= 0 ? SAMPLE_CALL : SAMPLE_TRAP;
	else
		__builtin_memcpy(&r, &ctx->regs, sizeof(r));
	s = bpf_map_lookup_elem(&sample_scratch, &zero);
	if (!s || (r.cs & 3) != 3)
		return 0;
	if (r.cs == 0x23)
		where |= SAMPLE_COMPAT;
	if (!bpf_probe_read_user(s->s.red_zone, sizeof(s->s.red_zone), (void *)(r.sp - sizeof(s->s.red_zone))))
		where |= SAMPLE_RED_ZONE;
	fill(&s->s.r, 0, bpf_get_smp_processor_id() << 8 | where);
	s->s.ip = r.ip;
	s->s.flags = r.flags;
	s->s.regs[0] = r.ax;
	s->s.regs[1] = r.cx;
	s->s.regs[2] = r.dx;
	s->s.regs[3] = r.bx;
	s->s.regs[4] = r.sp;
	s->s.regs[5] = r.bp;
	s->s.regs[6] = r.si;
	s->s.regs[7] = r.di;
	s->s.regs[8] = r.r8;
	s->s.regs[9] = r.r9;
	s->s.regs[10] = r.r10;
	s->s.regs[11] = r.r11;
	s->s.regs[12] = r.r12;
	s->s.regs[13] = r.r13;
	s->s.regs[14] = r.r14;
	s->s.regs[15] = r.r15;
	s->s.fs_base = BPF_CORE_READ(task, thread.fsbase);
	s->s.gs_base = BPF_CORE_READ(task, thread.gsbase);
	period = bpf_map_lookup_elem(&sample_period, &zero);
	s->s.period = period ? *period : 0;
	stack = copy_stack(s->stack, SAMPLE_STACK_MAX, r.sp, g->sample_stack);
	s->s.r.kind = stack & ~7u;
	bytes = sizeof(s->s) + (stack & ~7u);
	if (bytes > sizeof(s->s) + SAMPLE_STACK_MAX)
		bytes = sizeof(s->s) + SAMPLE_STACK_MAX;
	/* The reader comes by itself, many times before the ring can fill */
	if (bpf_ringbuf_output(&sample_ring, s, bytes, BPF_RB_NO_WAKEUP))
		drop(DROP_SAMPLE, 1);
	cost = bpf_map_lookup_elem(&sample_cost, &zero);
	if (cost) {
		__sync_fetch_and_add(&cost->taken, 1);
		__sync_fetch_and_add(&cost->ns, bpf_ktime_get_ns() - began);
	}
	return 0;
}

#endif
