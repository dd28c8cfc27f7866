// What a page says of an allocator, with known figures.
const MIB = 1 << 20;
const S = 1_000_000_000;

const estimate = (bytes, error_bytes, blocks) => ({ bytes, error_bytes, blocks, error_blocks: Math.round(blocks / 10) });
const site = (stack, never_freed, more = {}) => ({
  site: 1, label: stack[0] ?? "(unknown caller)", stack, samples: 40, allocated: estimate(never_freed * 2, MIB, 400), at_peak: estimate(never_freed, MIB / 2, 200), never_freed: estimate(never_freed, MIB / 2, 200),
  lifetime_p50_ns: 1_500_000, short_lived: 0.25, freed_elsewhere: 0, quarters: 4, idle: { second: 0, ten_seconds: MIB, minute: 2 * MIB, longer: 0, never: MIB, left_alone: MIB }, ...more,
});
/** How full pages of so many MiB are with blocks of so many. */
const fill = (time_ns, resident, live) => ({ time_ns, resident_bytes: resident * MIB, live_bytes: live * MIB, empty_bytes: MIB, pinned_bytes: (resident - live - 1) * MIB, sparse_pinned_bytes: (resident - live - 1) * MIB, sparse_pages: 9000, line_bytes: 2 * live * MIB });
/** Its time is known within a fifth, or not at all. */
const timed = (time_ns, timed = 200) => ({ timed, time_ns, time_error: time_ns === null ? null : 0.2, time_unknown: time_ns === null ? "few of its operations were timed" : null });
const caller = (label, time_ns) => ({ site: 1, label, operations: ["malloc", "free"], count: 1000, requested_bytes: 3 * MIB, freed_bytes: MIB, ...timed(time_ns), cpu_ns: time_ns && time_ns / 2, cpu_error: time_ns && 0.05, syscalls: 4, syscall_ns: 1000, faults: 9 });

export const HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>", `vector<${"pair<int, ".repeat(1000)}int${">".repeat(1001)} (deep.h:7)`];

/** Three call stacks of 30, 10 and 5 MiB that live at the peak; two of them begin alike. */
export function alloc(change = () => {}) {
  const sites = [
    site(["grow (list.c:12)", "build (list.c:40)", "main (main.c:7)"], 30 * MIB),
    site(["copy (text.c:3)", "main (main.c:7)"], 10 * MIB),
    site([], 5 * MIB, { idle: null }),
  ];
  const judgement = {
    schema: "varve-alloc/1",
    trace: { command: ["./prog"], duration_ns: 12 * S, cut: null, limited_processes: 0, limited: null, uncounted_processes: 0, uncounted: null, uncounted_command: false, allocator: "glibc", allocator_file: "/lib/libc.so.6", time_every: 64, notes: [], lost: 0, probe_ns: null, attached: false, plain_call_ns: 90, call_ns: 310 },
    verdict: { answer: "yes", sentence: "The allocator (glibc) is a problem: its threads wait for each other's locks. It takes 31 % of the CPU time.", time_share: 0.31, time_share_error: 0.02, memory_share: 0.2 },
    diagnoses: [{ id: "lock", title: "its threads wait for each other's locks", evidence: "4 threads allocate; their operations waited 2.1 s.", advice: "Take an allocator with caches for each thread.", share: 0.4, share_of: "the CPU time", by_program: false },
      { id: "leak", title: "memory is never freed", evidence: "30 MiB were left alone.", advice: "Free it.", share: 0.1, share_of: "the memory at the peak", by_program: true }],
    undecided: [],
    operations: { free: op(4000), malloc: op(5000) },
    time: { cpu_ns: 6 * S, operations_ns: 2 * S, operations_error: 0.03, operations_least_ns: 2 * S, waited_ns: S, queued_ns: 0, timed: { share: 0.33, error: 0.02 }, sampled: { share: 0.31, error: 0.01 }, allocating_ns: S, counting_ns: S / 10, samples: 6000, differ: false },
    times: { fresh: { timed: 70, p50_ns: 45, p99_ns: 1200, max_ns: 8_100_000, mean_ns: 61.4, mean_error_ns: 20 }, free: { timed: 60, p50_ns: 20, p99_ns: 300, max_ns: 5000, mean_ns: 25, mean_error_ns: 1 } },
    syscalls: [{ name: "futex", count: 900, by_frees: 300, failed: 7, time_ns: S, queued_ns: 0, bytes: 0, per_operation: 0.1, sites: [["grow (list.c:12)", 800]] }],
    faults: { inside: 120, outside: 4000, behind: 3000, behind_by_kernel: 400, behind_share: { share: 0.12, error: 0.015 }, per_operation: 0.0133 },
    given_back: { bytes: 80 * MIB, advised_bytes: 0, address_bytes: 90 * MIB, again_bytes: 60 * MIB, again: { share: 0.11, error: 0.012 }, unknown: null },
    memory: {
      peak_requested_bytes: 40 * MIB, peak_usable_bytes: 45 * MIB, peak_ns: 8 * S, peak_resident_bytes: 70 * MIB, peak_heap_resident_bytes: 60 * MIB, peak_heap_resident_before_end_ns: S / 20, end_requested_bytes: 35 * MIB, end_blocks: 5, internal_fragmentation: 0.11, blowup: 1.5, kept_bytes: 10 * MIB,
      mostly_kept: 0, mostly_kept_ns: 0, unseen_frees: 0, uncounted: null, unknown: null, own_bytes: MIB,
      over_time: Array.from({ length: 13 }, (_, i) => ({ time_ns: i * S, requested_bytes: i * 4 * MIB, usable_bytes: i * 4.5 * MIB, resident_bytes: (10 + i * 5) * MIB, heap_resident_bytes: i % 2 ? null : i * 5 * MIB })),
    },
    pages: { peak: fill(8 * S, 40, 36), sparsest: fill(10 * S, 40, 5), over_time: [fill(8 * S, 40, 36), fill(10 * S, 40, 5)], pinned_by: [
      { site: 4, label: "list.c:12, in grow", stack: ["grow (list.c:12)", "main (main.c:7)"], samples: 60, pinned: estimate(30 * MIB, 2 * MIB, 4000), age_p50_ns: 3 * S, touched: { second: 0, ten_seconds: 10 * MIB, minute: 20 * MIB, longer: 0 } },
    ] },
    lines: { blocks: 42, share: 0.01, active: 30, passive: 12, sites: [["grow (list.c:12)", 40], ["copy (text.c:3)", 2]], confirmed: { lines: 3, share: 0.25, error: 0.02, names: ["grow"] } },
    choice: { blocks: 1234, far: { share: 0.6, error: 0.03 }, sites: [["grow (list.c:12)", 700], ["copy (text.c:3)", 40]] },
    sites: [caller("grow (list.c:12)", 1.5 * S), caller("copy (text.c:3)", 0.5 * S), caller("once (main.c:2)", null)],
    blocks: { sample_bytes: MIB / 2, samples: 120, allocated: estimate(92 * MIB, 2 * MIB, 1300), peak_ns: 8 * S, at_peak: estimate(45 * MIB, MIB, 600), never_freed: estimate(45 * MIB, MIB, 600), sites },
    classes: [{ bytes: 64, count: 4000, requested_bytes: 200_000, usable_bytes: 256_000, freed: 3000, reallocated: 800, ...timed(S) }, { bytes: 2 ** 64, count: 1, requested_bytes: 9 * MIB, usable_bytes: 9 * MIB, freed: 0, reallocated: 0, ...timed(null, 1) }],
    threads: [{ pid: 7, tid: 7, name: "main", count: 9000, requested_bytes: 90 * MIB, freed_bytes: 50 * MIB, ...timed(2 * S) }],
    processes: [{ pid: 7, exe: "/bin/prog", allocator: "glibc", count: 9000, peak_requested_bytes: 40 * MIB }],
  };
  const of = (figure, error) => sites.map((s, row) => ({ row, weight: figure(s), error: error ? error(s) : null }));
  const data = {
    judgement, omitted_threads: 0, omitted_processes: 0,
    flames: [
      { measure: "allocated", idle_for_ns: null, stacks: [...of(s => s.allocated.bytes, s => s.allocated.error_bytes), { row: null, weight: 2 * MIB, error: MIB }] },
      { measure: "peak", idle_for_ns: null, stacks: of(s => s.at_peak.bytes, s => s.at_peak.error_bytes) },
      { measure: "count", idle_for_ns: null, stacks: of(s => s.allocated.blocks, s => s.allocated.error_blocks) },
      { measure: "time", idle_for_ns: null, stacks: judgement.sites.map((s, row) => ({ row, weight: s.time_ns ?? 0, error: s.time_ns && s.time_ns * s.time_error })) },
      { measure: "idle", idle_for_ns: 10 * S, stacks: [{ row: 0, weight: 3 * MIB, error: null }] },
    ],
  };
  change(data);
  return data;
}

function op(count) {
  return { count, requested_bytes: 90 * MIB, usable_bytes: 92 * MIB, fresh: count / 2, parallel: count / 4, failed: 0, timed: 70, time_ns: S, mean_ns: 61.4, time_error: 0.02 };
}
