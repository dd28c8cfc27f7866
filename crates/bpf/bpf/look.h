/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* The program that looks at pages for all others that see them go */
#ifndef VARVE_LOOK_H
#define VARVE_LOOK_H

static __always_inline void look_at_call(struct call *c)
{
	struct tracked *t = tracked_current();

	if (call_on_others(c) || !t || !(t->flags & TRACK_VANISH))
		return;
	if (c->op == OP_EXEC)
		exec_hook(c->args[0], c->args[1], c->args[2], c->wide);
	else if (c->op == OP_EXECAT)
		exec_hook(c->args[1], c->args[2], c->args[3], c->wide);
	else if (c->op == OP_PROCESS_VM || c->op == OP_PTRACE)
		reach_process(c);
	else
		vanish_call(c);
}

/* Reached from other programs alone (requests.h) */
SEC("raw_tp")
int look_at_pages(struct bpf_raw_tracepoint_args *ctx)
{
	struct request *q = asked_request();
	u64 began;
	u32 runs;

	if (!q)
		return 0;
	/*
	 * Never so. To a program that calls none in this way the kernel gives one stack on each CPU (since 6.13), as it does not run a
	 * program that it has interrupted: but it does not see that several go on in this one.
	 */
	if (q->what > REQUEST_CALL)
		bpf_tail_call(ctx, &continuations, NOTHING);
	if (q->what == REQUEST_CALL)
		look_at_call(&q->call);
	else if (q->what == REQUEST_ALL)
		vanish_all(q->cause);
	else
		vanish(q->mm, q->cause, q->start, q->end, q->owner);
	if (q->ends)
		report_end(q->ends);
	began = q->began;
	runs = q->runs;
	barrier();
	q->busy = 0;
	return began ? timed(began, runs) : 0;
}

#endif
