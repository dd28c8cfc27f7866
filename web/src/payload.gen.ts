// Written by `make types` from the Rust types in crates/report/src/html/payload.rs.

/**
 * What was recorded.
 */
export type About = { 
/**
 * The command line.
 */
command: Array<string>, 
/**
 * How long it was recorded.
 */
duration_ns: Duration, 
/**
 * Why only a part of the run is in the trace; null where all of it is.
 */
cut: string | null, 
/**
 * Of how many processes operations were not counted, or not to the end, as their address space or data are limited (RLIMIT_AS, RLIMIT_DATA): what counting
 * takes would be missing there.
 */
limited_processes: number, 
/**
 * Of how many processes operations were not counted to the end, as they locked their memory (`mlockall`).
 */
locked_processes: number, 
/**
 * Both as a sentence; null where there are none.
 */
limited: string | null, 
/**
 * Of how many processes no operation was counted, as what counts did not come into them.
 */
uncounted_processes: number, 
/**
 * Which these are and why, as a sentence; null where there are none.
 */
uncounted: string | null, 
/**
 * Whether the program that the command ran at last is one of them.
 */
uncounted_command: boolean, 
/**
 * The name of the allocator of the process with the most memory.
 */
allocator: string, 
/**
 * The file that has it.
 */
allocator_file: string, 
/**
 * Of so many operations one was timed.
 */
time_every: number, 
/**
 * What else is to be known of the recording, as sentences.
 */
notes: Array<string>, 
/**
 * Operations that were not counted, and charges that found no room.
 */
lost: number, 
/**
 * How much longer each operation took, where probes at the allocator's functions counted it; null where the preload library did.
 */
probe_ns: Duration | null, 
/**
 * Whether the program ran before it was recorded: of what it had allocated then nothing is known.
 */
attached: boolean, 
/**
 * What a system call of any program took before the recording.
 */
plain_call_ns: Duration, 
/**
 * And while it ran.
 */
call_ns: Duration, };

/**
 * Numbers of accesses.
 */
export type Accesses = { 
/**
 * That read.
 */
reads: number, 
/**
 * That wrote.
 */
writes: number, };

/**
 * A virtual address of a process, in bytes.
 */
export type Address = number;

/**
 * What the page says of the allocator.
 */
export type AllocPage = { 
/**
 * The figures, where operations were counted. Names are no longer than a person reads.
 */
judgement: Judged, 
/**
 * A flame graph for each measure that the trace knows.
 */
flames: Array<FlameGraph>, 
/**
 * Threads that the list leaves out: those with the fewest operations.
 */
omitted_threads: number, 
/**
 * Processes that the list leaves out: those with the least memory.
 */
omitted_processes: number, };

/**
 * Whether it is the allocator.
 */
export type Answer = "no" | "busy" | "yes" | "unknown";

/**
 * The time axis of flows: bins of equal length.
 */
export type Axis = { 
/**
 * Where the first bin begins.
 */
start_ns: Time, 
/**
 * The length of a bin.
 */
bin_ns: Duration, 
/**
 * How many bins.
 */
bins: number, };

/**
 * Time bins of the map.
 */
export type Bins = { count: number, intervals_per_bin: number, };

/**
 * What several threads do in one cache line, or in one page.
 */
export type BlockKind = "true_sharing" | "false_sharing";

/**
 * What one call stack allocated.
 */
export type BlockSite = { 
/**
 * The site, in the trace: one of those with this stack.
 */
site: SiteId | null, 
/**
 * Its name.
 */
label: string, 
/**
 * The functions of its stack, the innermost first, with files and lines; `module+0xoffset` without symbols.
 */
stack: Array<string>, 
/**
 * Blocks that were sampled.
 */
samples: number, 
/**
 * All that it allocated.
 */
allocated: Estimate, 
/**
 * What of it lived when most did; null where that is not known.
 */
at_peak: Estimate | null, 
/**
 * What of it was never freed.
 */
never_freed: Estimate, 
/**
 * Half of what was freed lived no longer, by bytes; null where nothing was.
 */
lifetime_p50_ns: Duration | null, 
/**
 * The share of its bytes that lived for less than a millisecond.
 */
short_lived: number, 
/**
 * The share of what was freed that another thread freed.
 */
freed_elsewhere: number, 
/**
 * In how many of the recording's quarters it allocated some that was never freed.
 */
quarters: number, 
/**
 * When what was never freed was touched last; null where pages were not recorded.
 */
idle: Idle | null, };

/**
 * A thread in a block.
 */
export type BlockThread = { 
/**
 * The thread, by position in [`SharingUse::threads`].
 */
thread: number, 
/**
 * The thread.
 */
tid: Tid, 
/**
 * Events.
 */
events: number, 
/**
 * Those that write.
 */
writes: number, 
/**
 * Its bytes: from, to (one past the last).
 */
bytes: Array<[number, number]>, };

/**
 * All sampled blocks.
 */
export type Blocks = { 
/**
 * To so many bytes one block was sampled, on average; 0: none.
 */
sample_bytes: Bytes, 
/**
 * Blocks that were sampled.
 */
samples: number, 
/**
 * All that was allocated.
 */
allocated: Estimate, 
/**
 * When most lived by the exact counts, from the beginning of the recording; of several processes to within a look at their counts. Null where
 * `memory.uncounted` says why.
 */
peak_ns: Duration | null, 
/**
 * What of the sample lived then; null likewise.
 */
at_peak: Estimate | null, 
/**
 * What was never freed: what lived when its process or the recording ended.
 */
never_freed: Estimate, 
/**
 * By call stack, those that never freed most first, then those that allocated most; at most 200.
 */
sites: Array<BlockSite>, };

/**
 * A number of bytes.
 */
export type Bytes = number;

/**
 * System calls of one name within operations.
 */
export type CallFigures = { 
/**
 * Its name.
 */
name: string, 
/**
 * How often.
 */
count: number, 
/**
 * Of these, within operations that free.
 */
by_frees: number, 
/**
 * Calls that failed: they gave an error, or (`brk`) did not move the end of the heap to where it was to be.
 */
failed: number, 
/**
 * How long in all its threads ran or slept in them.
 */
time_ns: Duration, 
/**
 * How long they were ready to run meanwhile and had no CPU.
 */
queued_ns: Duration, 
/**
 * Bytes of memory that those were about that did not fail.
 */
bytes: Bytes, 
/**
 * For each operation.
 */
per_operation: number, 
/**
 * The callers whose operations made most of them, and how many.
 */
sites: Array<[string, number]>, };

/**
 * The samples of one call chain whose access is known.
 */
export type ChainTime = { 
/**
 * Functions, the outermost first, separated by `;`: a folded stack for a flame graph. Code without symbols is `module+0xoffset`.
 */
stack: string, 
/**
 * How many.
 */
samples: number, 
/**
 * The time of its accesses; null where samples have no weight in time.
 */
time_ns: Duration | null, };

/**
 * Small blocks (1 KiB at most) that a thread allocated soon after it had freed others of their size class, in a sample.
 */
export type Choice = { 
/**
 * Blocks.
 */
blocks: number, 
/**
 * Of these, 64 KiB and more away from what had been freed and from the block before; null where there were none.
 */
far: Share | null, 
/**
 * Those blocks.
 */
far_blocks: number, 
/**
 * Those that lay far away by caller, those with most first: its name, blocks.
 */
sites: Array<[string, number]>, };

/**
 * A size class.
 */
export type ClassFigures = { 
/**
 * Its largest usable size.
 */
bytes: Bytes, 
/**
 * Allocations, and blocks that a `realloc` made to be of this class. All of these were freed, were reallocated, or live.
 */
count: number, 
/**
 * Bytes that were asked for.
 */
requested_bytes: Bytes, 
/**
 * Usable bytes of those blocks; null where the allocator does not say it.
 */
usable_bytes: Bytes | null, 
/**
 * Blocks that were freed.
 */
freed: number, 
/**
 * Blocks that a `realloc` took: each is a block of the class of its new size then, the same one or another.
 */
reallocated: number, 
/**
 * Allocations that were timed, of those that neither clear nor copy memory: not calloc and realloc.
 */
timed: number, 
/**
 * How long all of those took, made of the timed ones; null where it is not known.
 */
time_ns: Duration | null, 
/**
 * With 95 % confidence that is no further off than this share of it; null where it is not known.
 */
time_error: number | null, 
/**
 * Why that time is not known; null where it is.
 */
time_unknown: string | null, };

/**
 * What the numbers of the trace's clock count.
 */
export type ClockUnit = "nanoseconds" | "accesses" | "ticks";

/**
 * Where a column of numbers stands behind the JSON.
 */
export type Column = { 
/**
 * Bytes behind the end of the JSON.
 */
offset: number, 
/**
 * How many numbers.
 */
count: number, };

/**
 * What samples found of false sharing in the allocator's memory.
 */
export type Confirmed = { 
/**
 * Cache lines.
 */
lines: number, 
/**
 * The time at accesses to them, as a share of that at all accesses.
 */
share: number, 
/**
 * With 95 % confidence that share is no further off than this.
 */
error: number, 
/**
 * The names of what lies there, those with most time first.
 */
names: Array<string>, };

/**
 * What the counts say. A page that several objects share counts in the one that has most of it.
 */
export type CountUse = { 
/**
 * Accesses to pages of no known object.
 */
unowned: Accesses, 
/**
 * By object, most accesses first.
 */
objects: Array<ObjectCounts>, 
/**
 * By thread, most accesses first.
 */
threads: Array<ThreadCounts>, 
/**
 * That read.
 */
reads: number, 
/**
 * That wrote.
 */
writes: number, };

/**
 * Something that is wrong.
 */
export type Diagnosis = { 
/**
 * A word that stays the same.
 */
id: string, 
/**
 * What is wrong, as a part of a sentence.
 */
title: string, 
/**
 * How it was seen, with figures.
 */
evidence: string, 
/**
 * What helps.
 */
advice: string, 
/**
 * What it costs, as a share: 0 to 1.
 */
share: number, 
/**
 * Of what that is a share.
 */
share_of: string, 
/**
 * Whether it is the program's own doing: no other allocator helps.
 */
by_program: boolean, };

/**
 * What was touched of them on one side.
 */
export type DiffCells = { pages: number, address_bins: number, 
/**
 * The square root of the share of pages touched in the intervals, 0 to 255: `[address bin][column]`.
 */
heat: Column, };

/**
 * What became of a finding.
 */
export type DiffFate = "came" | "went" | "stayed" | "wavers";

/**
 * A figure of both sides.
 */
export type DiffFigure = { 
/**
 * What it is.
 */
measure: DiffMeasure, 
/**
 * What it counts.
 */
unit: DiffUnit, 
/**
 * The first side.
 */
a: DiffValues, 
/**
 * The second side.
 */
b: DiffValues, 
/**
 * From the median of the first to that of the second; null where one is not known.
 */
change: number | null, 
/**
 * The second's median for each of the first's; null where that is nothing or not known.
 */
ratio: number | null, 
/**
 * How likely chance alone makes the means differ so, by a permutation test; null without several runs a side.
 */
p: number | null, 
/**
 * The same for one of many figures: believing all up to some `q` is wrong in this share of them (Benjamini-Hochberg).
 */
q: number | null, 
/**
 * Whether it differs.
 */
verdict: DiffVerdict, };

/**
 * A finding of either side.
 */
export type DiffFindingChange = { 
/**
 * The rule.
 */
id: string, 
/**
 * What became of it.
 */
fate: DiffFate, 
/**
 * What it said on the first side, in the first run that has it.
 */
a: string | null, 
/**
 * What it said on the second side.
 */
b: string | null, 
/**
 * How many runs of each side have it.
 */
runs: [number, number], };

/**
 * The objects of a row on both sides.
 */
export type DiffLane = { 
/**
 * Which row of the objects.
 */
row: number, a: DiffCells | null, b: DiffCells | null, };

/**
 * Rows of a table: what changed most is first.
 */
export type DiffList = { 
/**
 * Figures of single runs are left out.
 */
rows: Array<DiffRow>, 
/**
 * Rows that are left out.
 */
omitted: number, };

/**
 * Two maps over one another.
 */
export type DiffMap = { 
/**
 * Into how many parts the time of each side is divided.
 */
columns: number, a_duration_ns: Duration, b_duration_ns: Duration, lanes: Array<DiffLane>, };

/**
 * How two were found to be the same.
 */
export type DiffMatch = "exact" | "moved" | "order" | "remaining" | "name";

/**
 * A figure of a program, or of its objects or code.
 */
export type DiffMeasure = "touched_bytes" | "peak_working_set_bytes" | "median_working_set_bytes" | "page_touches" | "peak_resident_bytes" | "faults" | "unowned_bytes" | "access_ns" | "duration_ns" | "held_share" | "objects" | "died" | "median_life_ns" | "bytes" | "peak_bytes";

/**
 * All that the page of a difference shows.
 */
export type DiffPage = { 
/**
 * Which varve wrote the page.
 */
generator: string, a: DiffSide, b: DiffSide, 
/**
 * What is known of chance, in a sentence.
 */
noise: string, 
/**
 * Whether both sides have several runs.
 */
noise_known: boolean, 
/**
 * What is unlike in the recordings, a sentence each.
 */
notes: Array<string>, 
/**
 * What a person calls the figures.
 */
titles: { [key in string]: string }, program: Array<DiffFigure>, objects: DiffList, functions: DiffList, lines: DiffList, findings: Array<DiffFindingChange>, 
/**
 * Figures and findings that are not the same on both sides.
 */
differences: number, 
/**
 * The maps of the first run of each side.
 */
map: DiffMap, };

/**
 * The objects of a site, a function or a line, on both sides.
 */
export type DiffRow = { 
/**
 * What the objects are; null of code.
 */
kind: ObjectKind | null, 
/**
 * What it is called on the first side; null where it is only on the second.
 */
a: string | null, 
/**
 * What it is called on the second side; null where it is only on the first.
 */
b: string | null, 
/**
 * How they were found to be the same; null where it is on one side only.
 */
match: DiffMatch | null, 
/**
 * The same in words, where they were not found by name, function and line; null elsewhere.
 */
how: string | null, 
/**
 * The figures that any side has.
 */
figures: Array<DiffFigure>, };

/**
 * A side.
 */
export type DiffSide = { 
/**
 * The trace, or the first and the last of several.
 */
traces: string, command: string, runs: number, 
/**
 * Of the first run.
 */
duration_ns: Duration, 
/**
 * Whether all runs are complete.
 */
complete: boolean, };

/**
 * What a figure counts.
 */
export type DiffUnit = "bytes" | "ns" | "count" | "share";

/**
 * A figure of the runs of a side.
 */
export type DiffValues = { 
/**
 * Of each run; null where not known.
 */
runs: Array<number | null>, 
/**
 * The median of those that are known.
 */
median: number | null, 
/**
 * The least.
 */
min: number | null, 
/**
 * The most.
 */
max: number | null, 
/**
 * Whether it may be more: a trace may lack something that it depends on, or others may have touched some of the pages.
 */
at_least: boolean, 
/**
 * Why it is not known, where it is not.
 */
why: string | null, };

/**
 * Whether a figure differs.
 */
export type DiffVerdict = "same" | "noise_unknown" | "more_than_noise" | "apart" | "within_noise" | "not_known";

/**
 * A length of time, nanoseconds.
 */
export type Duration = number;

/**
 * A number of bytes that was found by sampling.
 */
export type Estimate = { 
/**
 * Bytes.
 */
bytes: Bytes, 
/**
 * With 95 % confidence they are no further off than this.
 */
error_bytes: Bytes, 
/**
 * Blocks.
 */
blocks: number, 
/**
 * With 95 % confidence these are no further off than this.
 */
error_blocks: number, };

/**
 * Samples of an event at a place in the code.
 */
export type EventPlace = { 
/**
 * The place in words, or the address.
 */
place: string, 
/**
 * The instruction, where one is known.
 */
ip: Address | null, 
/**
 * How many.
 */
samples: number, 
/**
 * The part of the event, 0 to 1: of what its samples stand for, else of these.
 */
share: number, };

/**
 * Samples of one event.
 */
export type EventSamples = { 
/**
 * The event, as the source calls it.
 */
event: string, 
/**
 * How many.
 */
samples: number, 
/**
 * Those with an address: the others are no accesses.
 */
with_address: number, 
/**
 * How many of the event they stand for; null where the source does not say of each.
 */
periods: number | null, 
/**
 * By place in the code, most first.
 */
places: Array<EventPlace>, 
/**
 * Places that the list leaves out.
 */
omitted_places: number, };

/**
 * Page faults.
 */
export type Faults = { 
/**
 * Within operations.
 */
inside: number, 
/**
 * Elsewhere.
 */
outside: number, 
/**
 * Of these, first touches of pages that the allocator had mapped: fresh memory whose price the program pays later. Null where it is not known which
 * pages are the allocator's.
 */
behind: number | null, 
/**
 * Of these, those that the kernel made for the program, as in `read`: their time is not known. Null likewise.
 */
behind_by_kernel: number | null, 
/**
 * The share of CPU time in the others, which the program's own code made; by the clocks of CPUs. Null likewise, where no clock found the program at
 * work, and where the kernel made most of them.
 */
behind_share: Share | null, 
/**
 * Within operations, for each.
 */
per_operation: number, };

/**
 * How full the resident pages of what the allocator has mapped are, at a moment.
 */
export type Fill = { 
/**
 * When, from the beginning of the recording.
 */
time_ns: Duration, 
/**
 * Resident memory of what the allocator has mapped.
 */
resident_bytes: Bytes, 
/**
 * What of it is in blocks that live, each rounded up to 16 bytes.
 */
live_bytes: Bytes, 
/**
 * What of it is on pages without a block: it could be given back.
 */
empty_bytes: Bytes, 
/**
 * What of it is free on pages with a block: external fragmentation.
 */
pinned_bytes: Bytes, 
/**
 * The part of that on sparse pages, which blocks fill to a quarter at most.
 */
sparse_pinned_bytes: Bytes, 
/**
 * Sparse pages.
 */
sparse_pages: number, 
/**
 * Bytes of cache lines with a part of a block.
 */
line_bytes: Bytes, 
/**
 * Pages with blocks that several threads allocated, at least.
 */
shared_pages: number, };

/**
 * A finding.
 */
export type Finding = { 
/**
 * A stable name.
 */
id: string, 
/**
 * The finding in a line.
 */
title: string, 
/**
 * The numbers behind it.
 */
evidence: string, 
/**
 * What to do.
 */
advice: string, 
/**
 * It is of less weight than a finding.
 */
is_note: boolean, 
/**
 * The groups of the objects it is about, the most affected first.
 */
groups: Array<number>, };

/**
 * The rows of a flame graph.
 */
export type FlameGraph = { 
/**
 * What their weights are.
 */
measure: Measure, 
/**
 * Of idle bytes: nobody has touched them for so long; null of all else.
 */
idle_for_ns: Duration | null, 
/**
 * What has a weight.
 */
stacks: Array<FlameStack>, };

/**
 * A row of a flame graph.
 */
export type FlameStack = { 
/**
 * Which of `blocks.sites` it is, or of `sites` where it is about time; null: all that these lists leave out, and callers whose time is not known.
 */
row: number | null, 
/**
 * Bytes, blocks or nanoseconds.
 */
weight: number, 
/**
 * With 95 % confidence it is no further off than this; null where that is not known.
 */
error: number | null, };

/**
 * A thread in an object in a bin of time.
 */
export type FlowCell = { 
/**
 * The bin.
 */
bin: number, 
/**
 * The thread, by position.
 */
thread: number, 
/**
 * The weight.
 */
weight: number, 
/**
 * The part of it that writes.
 */
writes: number, };

/**
 * How much memory was touched.
 */
export type Footprint = { 
/**
 * Distinct pages of memory touched.
 */
touched_pages: Known<Pages>, 
/**
 * The sum over processes of the pages that each touched.
 */
touched_pages_per_process: Known<Pages>, 
/**
 * Sum over intervals of pages touched.
 */
page_touches: Known<number>, 
/**
 * The most pages touched in one interval.
 */
peak_working_set_pages: Known<Pages>, 
/**
 * The most pages resident at once; one that several processes map counts in each.
 */
peak_resident_pages: Known<Pages>, 
/**
 * The most memory of one process that was resident at any time, as the kernel counts it.
 */
peak_process_bytes: Known<Bytes>, 
/**
 * Pages that others may have touched, in no other figure.
 */
possibly_others_pages: Known<Pages>, 
/**
 * Sum over intervals of these.
 */
possibly_others_page_touches: Known<number>, };

/**
 * A stack frame.
 */
export type Frame = { 
/**
 * The function.
 */
function: string | null, 
/**
 * The source file.
 */
file: string | null, 
/**
 * The line.
 */
line: number | null, 
/**
 * The executable or library.
 */
module: string | null, 
/**
 * The address in that file, as its symbols count; null where the line is known, and where no file has the code.
 */
offset: number | null, 
/**
 * The address.
 */
address: Address, };

/**
 * Memory that operations gave back to the kernel, and what it costs that it came again.
 */
export type GivenBack = { 
/**
 * Bytes of pages that were there and that operations gave back, at least: what they unmapped, and what they gave back by `madvise` at once.
 */
bytes: Bytes, 
/**
 * Of these, by `madvise`.
 */
advised_bytes: Bytes, 
/**
 * Bytes of addresses, whether anything was there or not: of `munmap` and `brk` in operations that free or reallocate, and of `madvise`.
 */
address_bytes: Bytes, 
/**
 * Bytes that came again, at least, in processes in which three times as much or more came again as did not; 0 where there are none.
 */
again_bytes: Bytes, 
/**
 * The share of CPU time in first touches of memory that came again, by the program's own code and outside of operations; by the clocks of CPUs. Null
 * where no clock found the program at work, where the kernel made most of them for the program, as in `read`, and where it is not known which memory
 * is the allocator's.
 */
again: Share | null, 
/**
 * First touches of which it is not known what they took because their memory came again; null where there are none.
 */
unknown: UnknownTouches | null, };

/**
 * What a process has of the objects of a group.
 */
export type GroupProcess = { 
/**
 * The process.
 */
pid: Pid, 
/**
 * How many of the objects it has, or touched where several may map them.
 */
objects: number, 
/**
 * The sum over these of the pages that it touched: memory used again for another life counts each time. Null in a
 * trace without touches.
 */
touched_pages_over_lives: Pages | null, 
/**
 * Sum over them and over intervals of the pages that it touched; null in a trace without touches.
 */
page_touches: number | null, };

/**
 * Objects of one name, kind and site.
 */
export type GroupRow = { 
/**
 * Its lane; null where it has none of its own.
 */
lane: number | null, 
/**
 * On which ways the listed ones were allocated, the most frequent first.
 */
stacks: Array<Stack>, 
/**
 * Their name.
 */
name: string, 
/**
 * What they are.
 */
kind: ObjectKind, 
/**
 * Where they were allocated.
 */
site: string | null, 
/**
 * How many.
 */
objects: number, 
/**
 * The processes that have them, or touched them where several map one; most page touches first.
 */
processes: Array<GroupProcess>, 
/**
 * The threads that touched pages of them first, by page faults, summed over the objects, most pages first; null in a
 * trace without.
 */
threads: Array<ThreadShare> | null, 
/**
 * Their sizes, summed over all lives; null where unknown.
 */
bytes: Bytes | null, 
/**
 * The most bytes of them that lived at once; null where sizes or lives are not known.
 */
peak_bytes: Bytes | null, 
/**
 * How many died in the recording; null where unknown.
 */
died: number | null, 
/**
 * The median life of those that died.
 */
median_life_ns: Duration | null, 
/**
 * Objects of it that were never touched; null in a trace without touches.
 */
untouched_objects: number | null, 
/**
 * The sum over the objects of the pages touched: memory that is used again and again for another life counts each
 * time. Null in a trace without touches.
 */
touched_pages_over_lives: Pages | null, 
/**
 * The part of all page touches of the trace that is theirs, 0 to 1; a page that several objects lie on is divided among these, so that
 * the shares of all groups are 1 at most together. Null in a trace without touches.
 */
touch_share: number | null, 
/**
 * Distinct pages touched.
 */
touched_pages: Pages | null, 
/**
 * The part of them that it covers, at most: an object may lie on its first and its last page in part.
 */
touched_bytes: Bytes | null, 
/**
 * Sum over intervals of pages touched.
 */
page_touches: number | null, 
/**
 * Intervals in which any page of it was touched.
 */
intervals_touched: number | null, 
/**
 * In how many intervals its pages were touched. Of several objects: each page in each life.
 */
reuse: Reuse | null, 
/**
 * Page touches of pages that other objects lie on too: they may not be this object's.
 */
shared_page_touches: number | null, 
/**
 * Page touches that huge pages made.
 */
huge_page_touches: number | null, 
/**
 * Page touches whose bit could not be cleared or that are pinned: they repeat whether used or not.
 */
standing_page_touches: number | null, 
/**
 * Page touches that other processes may have made, and nothing shows that this program did; in no other figure. Where there are
 * any, the figures of touched pages and page touches are lower bounds.
 */
possibly_others_page_touches: number | null, 
/**
 * Touched pages, in use at the end of the recording, that the tail of the recording did not touch.
 */
cold_pages: Pages | null, 
/**
 * The end of the first interval that touched it; null where none did.
 */
first_touch_ns: Time | null, 
/**
 * The end of the last interval that touched it; null where none did.
 */
last_touch_ns: Time | null, 
/**
 * Touched pages that were written; null where unknown, a lower bound where `writes` is `partly`.
 */
written_pages: Pages | null, 
/**
 * Pages with a page fault: what `threads` accounts for. Of several objects: the sum over lives.
 */
first_touches: Pages | null, 
/**
 * Page faults in it while it was there: a page may have several, as when it is given back to the kernel meanwhile.
 */
faults: number | null, };

/**
 * Pages of the allocator.
 */
export type HeapPages = { 
/**
 * When most was resident.
 */
peak: Fill, 
/**
 * When most was free on sparse pages.
 */
sparsest: Fill, 
/**
 * By call stack, what kept sparse pages then; at most 50.
 */
pinned_by: Array<Pinning>, 
/**
 * Over time; at most 512 moments.
 */
over_time: Array<Fill>, };

/**
 * When the pages of blocks that were never freed were touched last, before the end: each byte in one of these.
 */
export type Idle = { 
/**
 * In the last second.
 */
second: Bytes, 
/**
 * Not in that, but in the last 10 s.
 */
ten_seconds: Bytes, 
/**
 * Not in those, but in the last 60 s.
 */
minute: Bytes, 
/**
 * Longer ago.
 */
longer: Bytes, 
/**
 * Never since they were allocated.
 */
never: Bytes, 
/**
 * Not since the interval that a block's first tenth of a second lies in, and for a quarter of the recording at least.
 */
left_alone: Bytes, };

/**
 * What a trace says of its program's allocator, as far as operations were counted.
 */
export type Judged = Judgement | Uncounted;

/**
 * What a trace says of its program's allocator.
 */
export type Judgement = { 
/**
 * [`SCHEMA`].
 */
schema: string, 
/**
 * What was recorded.
 */
trace: About, 
/**
 * Whether it is the allocator, in words.
 */
verdict: Verdict, 
/**
 * What is wrong, the costliest first.
 */
diagnoses: Array<Diagnosis>, 
/**
 * What seems to be wrong, and is not known: by its error it may be less than its bound. A longer run says it.
 */
undecided: Array<Diagnosis>, 
/**
 * Operations by what was called.
 */
operations: { [key in string]: OperationFigures }, 
/**
 * The share of the run's time.
 */
time: Times, 
/**
 * The distribution of times, by kind.
 */
times: { [key in string]: TimeFigures }, 
/**
 * System calls within operations, those that took longest first.
 */
syscalls: Array<CallFigures>, 
/**
 * Waits for the lock of the process's mappings; null where they were not seen.
 */
mmap_lock: LockWaits | null, 
/**
 * Page faults.
 */
faults: Faults, 
/**
 * Memory that operations gave back to the kernel, and that came again.
 */
given_back: GivenBack, 
/**
 * Memory of the process with the most.
 */
memory: Memory, 
/**
 * How full its pages are; null where nobody looked, its memory is less than 1 MiB, or it is not known which is its.
 */
pages: HeapPages | null, 
/**
 * Cache lines with blocks of several threads.
 */
lines: SharedLines, 
/**
 * Which free blocks the allocator gives out, where it has a choice.
 */
choice: Choice, 
/**
 * Callers, those that cost the most time first.
 */
sites: Array<SiteFigures>, 
/**
 * Sampled blocks: what lives, for how long, and who allocated it.
 */
blocks: Blocks, 
/**
 * Size classes, small ones first.
 */
classes: Array<ClassFigures>, 
/**
 * Threads, those with the most operations first.
 */
threads: Array<ThreadFigures>, 
/**
 * Processes, those with the most memory first.
 */
processes: Array<ProcessFigures>, };

/**
 * A figure, a bound of one, or the reason why there is none.
 */
export type Known<T> = { "exact": T } | { "at_least": T } | { "absent": string };

/**
 * A lane of the map.
 */
export type Lane = { title: string, 
/**
 * The group whose objects it holds; null where it holds what is left of several.
 */
group: number | null, 
/**
 * The kind of the objects that are left; null else.
 */
kind: ObjectKind | null, 
/**
 * How many objects it holds.
 */
objects: number, pages: number, pages_per_bin: number, address_bins: number, segments: Array<Segment>, 
/**
 * The square root of the share of pages touched, 0 to 255: `[address bin][time bin]`.
 */
heat: Column, 
/**
 * Distinct pages touched; scaled to 255 where a bin has more.
 */
coverage: Column, 
/**
 * Like `heat`, of what others may have touched; null where there is nothing of that.
 */
possibly: Column | null, 
/**
 * The thread that touched most of a bin first, 16 bits each.
 */
first_thread: Column, 
/**
 * The time bin of the first touch, 16 bits each.
 */
first_time: Column, };

/**
 * When pages were touched last, before a moment: each free byte on them in one of these.
 */
export type LastTouch = { 
/**
 * In the last second.
 */
second: Bytes, 
/**
 * Not in that, but in the last 10 s.
 */
ten_seconds: Bytes, 
/**
 * Not in those, but in the last 60 s.
 */
minute: Bytes, 
/**
 * Longer ago, or never while it was recorded.
 */
longer: Bytes, };

/**
 * How latencies are spread, in CPU cycles. Above 1024 they are exact to a thousandth.
 */
export type Latency = { 
/**
 * Samples with a latency.
 */
samples: number, 
/**
 * Half of them took no longer.
 */
median: number, 
/**
 * Nine of ten took no longer.
 */
p90: number, 
/**
 * 99 of 100 took no longer.
 */
p99: number, 
/**
 * The longest.
 */
max: number, };

/**
 * Samples that one level answered.
 */
export type LevelShare = { 
/**
 * The level.
 */
level: MemoryLevel, 
/**
 * How many.
 */
samples: number, 
/**
 * Their latencies; null where none is known.
 */
latency_cycles: Latency | null, };

/**
 * Samples at one line of code.
 */
export type LineTime = { 
/**
 * The function.
 */
function: string | null, 
/**
 * The source file.
 */
file: string | null, 
/**
 * The line in it.
 */
line: number | null, 
/**
 * The line at which the function begins, in the same file; null where unknown.
 */
function_line: number | null, 
/**
 * The executable or library.
 */
module: string | null, 
/**
 * All samples that stood there, the kernel's work on its behalf included.
 */
samples: number, 
/**
 * Their time; null where samples have no weight in time.
 */
time_ns: Duration | null, 
/**
 * The time of those whose access is known.
 */
access_ns: Duration | null, 
/**
 * The time of those at accesses whose address is gone.
 */
overwritten_ns: Duration | null, 
/**
 * The time of those that write.
 */
write_ns: Duration | null, 
/**
 * The time of those that stood in the kernel, which worked on the line's behalf.
 */
kernel_ns: Duration | null, 
/**
 * The function of the C library that the line called, where at least half of its time is in that; by the name that programs call it,
 * or the library's where its name is not known.
 */
called: string | null, };

/**
 * Waits for `mmap_lock`, the lock of a process's mappings: system calls that map and unmap hold it, and page faults may ask for it.
 */
export type LockWaits = { 
/**
 * How often an operation had to wait for it, because another thread of its process held it.
 */
waits: number, 
/**
 * How long in all, without the time in which the thread was ready to run and had no CPU.
 */
time_ns: Duration, 
/**
 * Of that, in waits in which the thread kept its CPU until it had the lock.
 */
spun_ns: Duration, 
/**
 * How long they were ready to run meanwhile and had no CPU.
 */
queued_ns: Duration, 
/**
 * How long operations waited because another process held it, such as one that reads what is resident; this is not part of the others.
 */
others_ns: Duration, 
/**
 * Waits outside of operations, most of them in page faults.
 */
outside: number, 
/**
 * How long those took.
 */
outside_ns: Duration, 
/**
 * The callers whose operations waited most often, and how often.
 */
sites: Array<[string, number]>, };

/**
 * What the widths of a flame graph are.
 */
export type Measure = "allocated" | "peak" | "never-freed" | "count" | "time" | "idle";

/**
 * Memory of a process.
 */
export type Memory = { 
/**
 * The most that the program had asked for and not freed; null where `uncounted` says why, as all that follows from what lives.
 */
peak_requested_bytes: Bytes | null, 
/**
 * Usable bytes of the blocks at that moment; null likewise, and where the allocator does not say it.
 */
peak_usable_bytes: Bytes | null, 
/**
 * When that was, from the beginning of the recording; null likewise.
 */
peak_ns: Duration | null, 
/**
 * The most resident anonymous memory that a look found; null where none was. Between looks it may have been more.
 */
peak_resident_bytes: Bytes | null, 
/**
 * The most resident memory of that which the allocator has mapped that a look found; null where that is not known, as all that follows from it.
 * Between looks, 50 ms and more, it may have been more.
 */
peak_heap_resident_bytes: Bytes | null, 
/**
 * How long before the end of the process, or of the recording, that look was; null likewise.
 */
peak_heap_resident_before_end_ns: Duration | null, 
/**
 * At the end of the recording, or of the process; null where `uncounted` says why.
 */
end_requested_bytes: Bytes | null, 
/**
 * Blocks then; null likewise.
 */
end_blocks: number | null, 
/**
 * The share of usable bytes that nobody asked for, at the peak; null where they are.
 */
internal_fragmentation: number | null, 
/**
 * Resident bytes of the allocator's at the most, for each byte asked for at the most.
 */
blowup: number | null, 
/**
 * Resident bytes of the allocator's that lie in no block, at the most.
 */
kept_bytes: Bytes | null, 
/**
 * The share of the time in which these were more than half of its resident memory.
 */
mostly_kept: number | null, 
/**
 * How long that was.
 */
mostly_kept_ns: Duration | null, 
/**
 * Blocks that were handed out where one lived, which nobody saw freed. Such a block counts as living until then.
 */
unseen_frees: number, 
/**
 * Why it is not known what lives: operations were not counted; null where all were.
 */
uncounted: string | null, 
/**
 * Why it is not known what is resident of the allocator's memory; null where it is.
 */
unknown: string | null, 
/**
 * Memory that counting took in the process.
 */
own_bytes: Bytes, 
/**
 * Over time; at most 512 moments.
 */
over_time: Array<Moment>, };

/**
 * Where the data of an access came from.
 */
export type MemoryLevel = "l1" | "l2" | "l3" | "l4" | "fill_buffer" | "local_dram" | "remote_dram" | "remote_cache" | "dram" | "pmem" | "cxl" | "io" | "uncached";

/**
 * Memory at a moment.
 */
export type Moment = { 
/**
 * When, from the beginning of the recording.
 */
time_ns: Duration, 
/**
 * Bytes that the program asked for and had not freed; null where [`Memory::uncounted`] says why.
 */
requested_bytes: Bytes | null, 
/**
 * Bytes that it could use in those blocks; null likewise, and where the allocator does not say it.
 */
usable_bytes: Bytes | null, 
/**
 * Resident anonymous memory, without Varve's.
 */
resident_bytes: Bytes | null, 
/**
 * Resident memory of that which the allocator has mapped; null where that is not known, or nobody looked.
 */
heap_resident_bytes: Bytes | null, };

/**
 * An object.
 */
export type Object = { 
/**
 * Its group, which has its name, kind and site.
 */
group: number, 
/**
 * Its process; of memory that several map, the first.
 */
pid: Pid, 
/**
 * The processes that touched it where several may map it: how many pages, and how many they wrote; null where unknown.
 */
processes: Array<[Pid, Pages | null, Pages | null]>, 
/**
 * Its first byte; null where unknown.
 */
address: Address | null, 
/**
 * Its size; null where unknown.
 */
bytes: Bytes | null, 
/**
 * The pages it overlaps; null where unknown.
 */
pages: Pages | null, 
/**
 * Pages touched at least once; null in a trace without touches, as are all figures of touches.
 */
touched_pages: Pages | null, 
/**
 * Sum over intervals of pages touched.
 */
page_touches: number | null, 
/**
 * Sum over intervals of its pages that others may have touched.
 */
possibly_others_page_touches: number | null, 
/**
 * Pages written at least once; null where unknown.
 */
written_pages: Pages | null, 
/**
 * When it came to be; null where before the recording, or where nobody knows.
 */
born_ns: Time | null, 
/**
 * When it ceased; null where it lived to the end.
 */
died_ns: Time | null, 
/**
 * Pages first touched, by thread, most pages first; empty where unknown.
 */
first_touches: Array<[number, Pages]>, 
/**
 * Pages touched in no, one, two, and three or more intervals; null where unknown.
 */
reuse: [Pages, Pages, Pages, Pages] | null, 
/**
 * The lane that it stands in; null where it has no pages.
 */
lane: number | null, 
/**
 * Its first page, counted within the lane.
 */
lane_page: number, };

/**
 * Accesses to an object.
 */
export type ObjectCounts = { 
/**
 * Its number.
 */
object: ObjectId, 
/**
 * Its name.
 */
name: string, 
/**
 * What it is.
 */
kind: ObjectKind, 
/**
 * By thread, most accesses first.
 */
threads: Array<ThreadCounts>, 
/**
 * That read.
 */
reads: number, 
/**
 * That wrote.
 */
writes: number, };

/**
 * An object of a trace: one life of one piece of memory.
 */
export type ObjectId = number;

/**
 * What an object is.
 */
export type ObjectKind = "static" | "heap" | "stack" | "mapping" | "file" | "recorder";

/**
 * A time in which the same threads use an object.
 */
export type ObjectPhase = { 
/**
 * Its beginning.
 */
from_ns: Time, 
/**
 * Its end.
 */
to_ns: Time, 
/**
 * Threads with a tenth of its weight then, at least; by position.
 */
threads: Array<number>, 
/**
 * The weight of all use.
 */
weight: number, };

/**
 * Samples in the objects of one name, kind and site.
 */
export type ObjectSamples = { 
/**
 * The number of the one that has the most.
 */
object: ObjectId, 
/**
 * Their name.
 */
name: string, 
/**
 * What they are.
 */
kind: ObjectKind, 
/**
 * The process of that one.
 */
pid: Pid, 
/**
 * How many objects have samples.
 */
objects: number, 
/**
 * Threads among them, most first: a row of the matrix of threads and objects; empty where no sample says.
 */
threads: Array<ThreadPart>, 
/**
 * How the accesses of one instruction move; null where there are too few.
 */
steps: Steps | null, 
/**
 * How many.
 */
samples: number, 
/**
 * Reads among them; null where no sample says.
 */
reads: number | null, 
/**
 * Writes among them; null where no sample says.
 */
writes: number | null, 
/**
 * Latencies; null where no sample says.
 */
latency_cycles: Latency | null, 
/**
 * The time that they stand for, time at the instruction; null where they have no weight in time.
 */
time_ns: Duration | null, 
/**
 * That of samples whose access is known.
 */
access_ns: Duration | null, 
/**
 * That of samples at accesses whose address is gone: the instruction replaced the register that it came from.
 */
overwritten_ns: Duration | null, 
/**
 * That of accesses that write.
 */
write_ns: Duration | null, 
/**
 * That of samples in system calls.
 */
call_ns: Duration | null, };

/**
 * An object and its threads.
 */
export type ObjectSharing = { 
/**
 * Its number.
 */
object: ObjectId, 
/**
 * Its name.
 */
name: string, 
/**
 * How many objects of that name these figures are of: small ones, below 64 KiB each, count together, and then there
 * are no parts.
 */
objects: number, 
/**
 * What it is.
 */
kind: ObjectKind, 
/**
 * Its process.
 */
pid: Pid, 
/**
 * Its size; of several the sum.
 */
bytes: Bytes, 
/**
 * Events in it.
 */
events: number, 
/**
 * Their weight.
 */
weight: number, 
/**
 * The part of it that reads; null where the source does not say.
 */
reads: number | null, 
/**
 * The part of it that writes.
 */
writes: number | null, 
/**
 * Private or shared, as far as was seen; null where only first touches are known, and where trapped accesses show one
 * thread.
 */
class: SharingClass | null, 
/**
 * Its pages by who accessed them; null where accesses were not counted.
 */
pages: Sharing | null, 
/**
 * The thread that touched most of its pages first; null where unknown.
 */
first_tid: Tid | null, 
/**
 * Its threads, most weight first.
 */
threads: Array<SharingPart>, 
/**
 * Threads of the process that lived beside it and never touched it; of samples: that were seen elsewhere at least
 * [`ENOUGH`] times, and never in it. Null of trapped accesses.
 */
never_touched_by: Array<Tid> | null, 
/**
 * Threads that touch it and never write it; of samples: that were seen in it at least [`ENOUGH`] times. Null of trapped
 * accesses.
 */
never_written_by: Array<Tid> | null, 
/**
 * The share of its weight that belongs to the heaviest thread of each part: 1 where every part is one thread's. Of at
 * most 64 parts, fewer where they would have less than 16 events each; parts with less than 8 do not count, and it is
 * null where the others have less than half the weight, and of trapped accesses.
 */
own_share: number | null, 
/**
 * The distribution of its pages over threads.
 */
ranges: Ranges, 
/**
 * Its event flow: which threads use it, when.
 */
phases: Array<ObjectPhase>, 
/**
 * The same in bins of the axis.
 */
flow: Array<FlowCell>, };

/**
 * How many rows the lists leave out.
 */
export type OmittedSamples = { 
/**
 * Objects.
 */
objects: number, 
/**
 * Places.
 */
places: number, 
/**
 * Lines of code.
 */
lines: number, 
/**
 * Call chains.
 */
chains: number, 
/**
 * Threads.
 */
threads: number, };

/**
 * Operations of one name.
 */
export type OperationFigures = { 
/**
 * How many.
 */
count: number, 
/**
 * Bytes that were asked for, or given back.
 */
requested_bytes: Bytes, 
/**
 * Usable bytes of those blocks; null where the allocator does not say it.
 */
usable_bytes: Bytes | null, 
/**
 * Blocks that began where none had begun before; null where probes counted, and where operations were not counted.
 */
fresh: number | null, 
/**
 * While several threads allocated.
 */
parallel: number, 
/**
 * There was nothing to be had.
 */
failed: number, 
/**
 * How many were timed.
 */
timed: number, 
/**
 * How long all took, made of those.
 */
time_ns: Duration, 
/**
 * How long one took on average.
 */
mean_ns: number, 
/**
 * With 95 % confidence both are no further off than this share of them, as the few that were timed stand for all.
 */
time_error: number, 
/**
 * System calls within them.
 */
syscalls: number, };

/**
 * What recording cost.
 */
export type Overhead = { 
/**
 * The share of the time in which the target was held, 0 to 1.
 */
held_share: Known<number>, 
/**
 * CPU time of the recorder.
 */
recorder_cpu_ns: Known<Duration>, 
/**
 * How much longer the program took for being recorded, and of what that is made; null where nobody measured it.
 */
slowdown: Slowdown | null, };

/**
 * A page number: virtual address >> 12.
 */
export type Page = number;

/**
 * A number of 4 KiB pages.
 */
export type Pages = number;

/**
 * All of it. Moments are nanoseconds since the start of the trace.
 */
export type Payload = { 
/**
 * Which varve wrote the page.
 */
generator: string, trace: TraceSummary, overhead: Overhead, footprint: Footprint, 
/**
 * What samples say; null where there are none.
 */
samples: SampleUse | null, 
/**
 * What counts say; null where there are none.
 */
counts: CountUse | null, 
/**
 * Who uses what; null where no thread of an access is known.
 */
sharing: SharingUse | null, 
/**
 * What is said of the allocator; null where no operations were recorded, or a part of the trace is shown.
 */
alloc: AllocPage | null, 
/**
 * What is shown first.
 */
opens: View, 
/**
 * What this trace cannot show, a sentence each.
 */
unknown: Array<string>, bins: Bins, 
/**
 * Microseconds from one edge of an interval to the next, 32 bits each; one edge more than there are intervals.
 */
interval_edges: Column, 
/**
 * Pages touched in each interval, as differences, 32 bits each.
 */
working_set: Column, 
/**
 * The same of resident pages; null where they were not recorded.
 */
resident: Column | null, 
/**
 * The phases and events that the program named, in the order in which they came first.
 */
phases: Array<PhaseBand>, 
/**
 * Those that the list leaves out.
 */
omitted_phases: number, processes: Array<ProcessUse>, 
/**
 * All threads that others refer to by position.
 */
threads: Array<Thread>, lanes: Array<Lane>, 
/**
 * The objects by name, kind and site; most page touches first.
 */
groups: Array<GroupRow>, 
/**
 * The hottest objects of each group.
 */
objects: Array<Object>, 
/**
 * Groups that the list leaves out.
 */
omitted_groups: number, findings: Array<Finding>, };

/**
 * A phase that the program named, or all events of one name.
 */
export type PhaseBand = { 
/**
 * What the program calls it.
 */
name: string, 
/**
 * Whether it is an event, which takes no time.
 */
is_event: boolean, 
/**
 * How often it ran, or happened.
 */
times: number, 
/**
 * How many of these the program did not end.
 */
open: number, 
/**
 * The time of all of them, on all threads.
 */
total_ns: Duration, 
/**
 * Distinct pages touched in the intervals that overlap with it.
 */
touched_pages: Known<Pages>, 
/**
 * When it ran: first and last microsecond, on the clock of the map, in order, without overlap. Runs close together are one.
 */
spans: Array<[number, number]>, };

/**
 * A process (thread group) id, as the recorder's pid namespace sees it.
 */
export type Pid = number;

/**
 * Blocks of one call stack on sparse pages.
 */
export type Pinning = { 
/**
 * The site, in the trace: one of those with this stack.
 */
site: SiteId | null, 
/**
 * Its name.
 */
label: string, 
/**
 * The functions of its stack, the innermost first, with files and lines; `module+0xoffset` without symbols.
 */
stack: Array<string>, 
/**
 * Blocks that were sampled.
 */
samples: number, 
/**
 * Free memory that they keep resident.
 */
pinned: Estimate, 
/**
 * Half of that is kept by blocks that are no older.
 */
age_p50_ns: Duration, 
/**
 * When the pages were touched last; null where pages were not recorded.
 */
touched: LastTouch | null, };

/**
 * Samples of a place in the code.
 */
export type PlaceSamples = { 
/**
 * The place in words, or the address.
 */
place: string, 
/**
 * The instruction, where one is known.
 */
ip: Address | null, 
/**
 * How many.
 */
samples: number, 
/**
 * Reads among them; null where no sample says.
 */
reads: number | null, 
/**
 * Writes among them; null where no sample says.
 */
writes: number | null, 
/**
 * Latencies; null where no sample says.
 */
latency_cycles: Latency | null, 
/**
 * The time that they stand for, time at the instruction; null where they have no weight in time.
 */
time_ns: Duration | null, 
/**
 * That of samples whose access is known.
 */
access_ns: Duration | null, 
/**
 * That of samples at accesses whose address is gone: the instruction replaced the register that it came from.
 */
overwritten_ns: Duration | null, 
/**
 * That of accesses that write.
 */
write_ns: Duration | null, 
/**
 * That of samples in system calls.
 */
call_ns: Duration | null, };

/**
 * A process.
 */
export type ProcessFigures = { 
/**
 * The process.
 */
pid: Pid, 
/**
 * Its program.
 */
exe: string, 
/**
 * The name of its allocator.
 */
allocator: string, 
/**
 * Operations.
 */
count: number, 
/**
 * The most that it had asked for and not freed; null where operations were not counted.
 */
peak_requested_bytes: Bytes | null, };

/**
 * A process.
 */
export type ProcessUse = { 
/**
 * The process.
 */
pid: Pid, 
/**
 * Its last command line; empty where unknown. Where several processes had the pid, those of all of them, each of them
 * before `; then `: all figures are of all of them together.
 */
command: string, 
/**
 * Its threads, as far as known.
 */
threads: number, 
/**
 * When it began or was first seen.
 */
born_ns: Time | null, 
/**
 * When it ended, where that was seen.
 */
died_ns: Time | null, 
/**
 * Its exit code, where its end was seen.
 */
exit_code: number | null, 
/**
 * The most memory of it that was resident at once, from the beginning to the end of each of its programs, as the kernel counts it.
 */
peak_resident: Known<Bytes>, 
/**
 * Distinct pages touched.
 */
touched_pages: Pages | null, 
/**
 * The part of them that other processes touched too.
 */
shared_pages: Pages | null, 
/**
 * Sum over intervals of pages touched.
 */
page_touches: number | null, };

/**
 * A thread in a part of an object.
 */
export type RangeCell = { 
/**
 * The part.
 */
range: number, 
/**
 * The thread, by position.
 */
thread: number, 
/**
 * Events.
 */
events: number, 
/**
 * Their weight.
 */
weight: number, 
/**
 * The part of it that writes.
 */
writes: number, };

/**
 * How an object's pages are spread over threads.
 */
export type Ranges = { 
/**
 * Parts of the object.
 */
count: number, 
/**
 * Pages of a part; the last may have fewer.
 */
pages: Pages, 
/**
 * The parts that are used.
 */
cells: Array<RangeCell>, };

/**
 * Pages by the number of intervals in which they were touched.
 */
export type Reuse = { 
/**
 * In one.
 */
once: Pages, 
/**
 * In two.
 */
twice: Pages, 
/**
 * In three or more.
 */
more: Pages, };

/**
 * How a sample of a memory access became known.
 */
export type SampleSource = "cpu-clock" | "pebs" | "ibs" | "spe" | "perf_mem" | "mitos" | "iiswc22" | "lackey" | "moca" | "fault";

/**
 * What the samples say. Lists are in the order of time where samples have a weight in time, else of their number.
 */
export type SampleUse = { 
/**
 * What a sample stands for, a sentence.
 */
weight: string, 
/**
 * How Varve took them and what became of them; null where another tool did.
 */
note: SamplesNote | null, 
/**
 * At which rate they were taken and what chose it; null where another tool took them.
 */
rate: string | null, 
/**
 * The time of accesses that lie in no known object; null where samples have no weight in time.
 */
unowned_ns: Duration | null, 
/**
 * Those with an address; a sample of an instruction with two accesses is two.
 */
with_address: number, 
/**
 * Those in a known object.
 */
with_object: number, 
/**
 * Accesses beyond these to the recorder's own memory in the target: their time is in the code, and in no object.
 */
own_accesses: number, 
/**
 * By source, in the order of the sources' words.
 */
sources: Array<SourceShare>, 
/**
 * By event, most samples first; empty where the source names none. The lists below are of all events together.
 */
events: Array<EventSamples>, 
/**
 * By level, nearest first; samples without a level are in none.
 */
levels: Array<LevelShare>, 
/**
 * By name, kind and site of objects; the recorder's own memory is not among them.
 */
objects: Array<ObjectSamples>, 
/**
 * By place in the code.
 */
places: Array<PlaceSamples>, 
/**
 * By line of code, where call stacks are known.
 */
lines: Array<LineTime>, 
/**
 * Call chains of the samples whose access is known, most first.
 */
flame: Array<ChainTime>, 
/**
 * By thread.
 */
threads: Array<ThreadSamples>, 
/**
 * Rows that the lists leave out, by list.
 */
omitted: OmittedSamples, 
/**
 * How many.
 */
samples: number, 
/**
 * Reads among them; null where no sample says.
 */
reads: number | null, 
/**
 * Writes among them; null where no sample says.
 */
writes: number | null, 
/**
 * Latencies; null where no sample says.
 */
latency_cycles: Latency | null, 
/**
 * The time that they stand for, time at the instruction; null where they have no weight in time.
 */
time_ns: Duration | null, 
/**
 * That of samples whose access is known.
 */
access_ns: Duration | null, 
/**
 * That of samples at accesses whose address is gone: the instruction replaced the register that it came from.
 */
overwritten_ns: Duration | null, 
/**
 * That of accesses that write.
 */
write_ns: Duration | null, 
/**
 * That of samples in system calls.
 */
call_ns: Duration | null, };

/**
 * How samples were taken and what became of them. Lost ones do not make a trace incomplete: samples are samples.
 */
export type SamplesNote = { 
/**
 * What took them.
 */
source: SampleSource, 
/**
 * How many were asked for, per second of each CPU; where the permitted overhead chooses, at most.
 */
rate: number, 
/**
 * Whether the permitted overhead chose how many were taken.
 */
by_overhead: boolean, 
/**
 * How many were taken on average, per second of CPU time of the target.
 */
mean_rate: number, 
/**
 * The lowest rate at which they were taken for a time, to keep within the permitted overhead.
 */
least_rate: number, 
/**
 * How many were taken of recorded threads.
 */
taken: number, 
/**
 * The CPU time that they stand for; 0 where they have no weight in time.
 */
time_ns: Duration, 
/**
 * Of those: the kernel was at work, in a system call.
 */
in_calls: number, 
/**
 * The kernel was at work, for a fault or an interrupt.
 */
in_traps: number, 
/**
 * The access was that of the instruction before.
 */
behind: number, 
/**
 * That of the instruction itself.
 */
at: number, 
/**
 * That of the next instruction to access memory.
 */
ahead: number, 
/**
 * The hardware reported the access.
 */
hardware: number, 
/**
 * The program was at work, and the access could not be resolved for certain.
 */
undecoded: number, 
/**
 * Of those: the instruction that the thread waited for has replaced the register that its address came from, as each
 * step of a walk over a linked list does.
 */
overwritten: number, 
/**
 * Of `undecoded`: gathers and scatters, whose addresses stand in vector registers that no sample carries.
 */
gathers: number, 
/**
 * Beyond all these: samples that did not fit the ring.
 */
dropped: number, };

/**
 * A stretch of a lane: pages that follow each other in a process.
 */
export type Segment = { 
/**
 * The process; of memory that several map, the first that had it.
 */
pid: Pid, 
/**
 * Its first page, counted within the lane.
 */
lane_page: number, 
/**
 * Its first page in the address space.
 */
page: Page, 
/**
 * How many pages.
 */
pages: number, };

/**
 * A share that was measured on a part of the whole.
 */
export type Share = { 
/**
 * 0 to 1.
 */
share: number, 
/**
 * With 95 % confidence it is no further off than this.
 */
error: number, };

/**
 * A cache line or a page with several threads.
 */
export type SharedBlock = { 
/**
 * The object; null where none is known there.
 */
object: ObjectId | null, 
/**
 * Its name; empty where none is known.
 */
name: string, 
/**
 * The first byte of the block.
 */
address: Address, 
/**
 * Its size.
 */
bytes: Bytes, 
/**
 * What its two busiest threads do.
 */
kind: BlockKind, 
/**
 * Events in it.
 */
events: number, 
/**
 * Their weight.
 */
weight: number, 
/**
 * Its share of the weight of all accesses, 0 to 1; of trapped accesses that says nothing of how often it is used.
 */
share: number, 
/**
 * The standard error of `share`; 0 of trapped accesses, which are no sample of all accesses.
 */
share_error: number, 
/**
 * How often the next event in it was of another thread.
 */
turns: number, 
/**
 * The chance that accesses of one common pattern would fall apart between the two threads so by luck; 0 for true
 * sharing.
 */
chance: number, 
/**
 * The two busiest threads, with the bytes (offsets in the block) that they use.
 */
threads: [BlockThread, BlockThread], };

/**
 * Blocks that came to lie on a cache line with a block of another thread.
 */
export type SharedLines = { 
/**
 * Blocks.
 */
blocks: number, 
/**
 * Their share of all that were allocated.
 */
share: number, 
/**
 * Of them, to whom the allocator gave such memory by itself: active false sharing, if both threads write.
 */
active: number, 
/**
 * Whose memory another thread had freed than had allocated it: passive false sharing, if both threads write.
 */
passive: number, 
/**
 * By caller, those with most first: its name, blocks.
 */
sites: Array<[string, number]>, 
/**
 * Lines on which samples found two threads that use different bytes, and one that writes; null where nothing was sampled.
 */
confirmed: Confirmed | null, };

/**
 * Pages by how many threads accessed them. Their sum is the number of accessed pages.
 */
export type Sharing = { 
/**
 * Accessed by one thread only.
 */
private: Pages, 
/**
 * Read by several threads and written by none.
 */
read_only: Pages, 
/**
 * Accessed by several threads and written by one of them.
 */
one_writer: Pages, 
/**
 * Written by several threads.
 */
many_writers: Pages, };

/**
 * Private or shared.
 */
export type SharingClass = "private" | "read_only" | "one_writer" | "many_writers" | "shared" | "too_few";

/**
 * A thread's part of an object.
 */
export type SharingPart = { 
/**
 * The thread, by position in [`SharingUse::threads`].
 */
thread: number, 
/**
 * The thread.
 */
tid: Tid, 
/**
 * Its events.
 */
events: number, 
/**
 * Their weight.
 */
weight: number, 
/**
 * The part of it that writes.
 */
writes: number, 
/**
 * Parts of the object, of [`Ranges::count`], that it was seen in.
 */
ranges: number, 
/**
 * Pages that it touched first; null where unknown.
 */
first_pages: Pages | null, 
/**
 * Its first event and its last; null where the source has no time.
 */
first_ns: Time | null, 
/**
 * Likewise.
 */
last_ns: Time | null, };

/**
 * What sharing is known from.
 */
export type SharingSource = "counts" | "samples" | "traps" | "faults";

/**
 * A thread.
 */
export type SharingThread = { 
/**
 * Its process.
 */
pid: Pid, 
/**
 * The thread.
 */
tid: Tid, 
/**
 * Its name; empty where unknown.
 */
name: string, 
/**
 * Its events.
 */
events: number, 
/**
 * Their weight.
 */
weight: number, 
/**
 * The part of it that writes.
 */
writes: number, 
/**
 * Its event flow: the objects that it goes through, in order.
 */
phases: Array<ThreadPhase>, };

/**
 * Who shares what.
 */
export type SharingUse = { 
/**
 * What it is known from.
 */
source: SharingSource, 
/**
 * What weights count.
 */
unit: WeightUnit, 
/**
 * What a weight is, a sentence.
 */
weight: string, 
/**
 * Events: rows of counts, samples of known accesses, first accesses to pages in intervals, or page faults.
 */
events: number, 
/**
 * Whether these are enough to say who uses what: of samples, [`ENOUGH`].
 */
enough: boolean, 
/**
 * Their weight.
 */
total: number, 
/**
 * The time axis of flows; null where the source has none.
 */
axis: Axis | null, 
/**
 * The threads, most weight first; others refer to them by position.
 */
threads: Array<SharingThread>, 
/**
 * The objects, most weight first.
 */
objects: Array<ObjectSharing>, 
/**
 * Objects that the list leaves out.
 */
omitted_objects: number, 
/**
 * Cache lines of 64 bytes with several threads of which one writes, most weight first. Only samples and trapped accesses
 * have addresses; of the latter no lines with the same bytes are listed, as they do not say how many bytes are used.
 */
lines: Array<SharedBlock>, 
/**
 * The same of pages of 4 KiB, by lines.
 */
pages: Array<SharedBlock>, 
/**
 * Lines and pages in which accesses were distinguished; with [`SURE`] this bounds the chance of each to be there by luck.
 */
tested: number, 
/**
 * Blocks with no more events than this may be missing, because there were too many blocks; 0 as a rule.
 */
missed_below: number, };

/**
 * A caller.
 */
export type SiteFigures = { 
/**
 * The site, in the trace.
 */
site: SiteId | null, 
/**
 * Its name.
 */
label: string, 
/**
 * What it calls, the most frequent first.
 */
operations: Array<string>, 
/**
 * Operations.
 */
count: number, 
/**
 * Bytes that were asked for.
 */
requested_bytes: Bytes, 
/**
 * Bytes that were given back.
 */
freed_bytes: Bytes, 
/**
 * Operations that were timed.
 */
timed: number, 
/**
 * How long its operations took, made of those that were timed; null where it is not known.
 */
time_ns: Duration | null, 
/**
 * With 95 % confidence that is no further off than this share of it; null where it is not known.
 */
time_error: number | null, 
/**
 * Why that time is not known; null where it is.
 */
time_unknown: string | null, 
/**
 * CPU time of its operations, by the clocks of CPUs that found a thread within one; null where fewer than four did.
 */
cpu_ns: Duration | null, 
/**
 * With 95 % confidence that is no further off than this share of it; null where it is not known.
 */
cpu_error: number | null, 
/**
 * System calls within them.
 */
syscalls: number, 
/**
 * How long these took.
 */
syscall_ns: Duration, 
/**
 * Page faults within them.
 */
faults: number, };

/**
 * A call site: one distinct call stack of a trace.
 */
export type SiteId = number;

/**
 * How much longer the program took for being recorded, as it was measured meanwhile: shares of the time that it would have
 * taken by itself.
 */
export type Slowdown = { 
/**
 * What it was to be at most; null where the length of intervals was forced.
 */
asked: number | null, 
/**
 * What it was: the sum of the six that follow.
 */
measured: number, 
/**
 * It was held.
 */
held: number, 
/**
 * First accesses to pages whose bit had been cleared.
 */
first_accesses: number, 
/**
 * Samples interrupted it.
 */
samples: number, 
/**
 * The preload library in it reported objects.
 */
objects: number, 
/**
 * Programs in the kernel reported its faults, mappings, threads and processes.
 */
reports: number, 
/**
 * The recorder worked where it could have.
 */
contention: number, 
/**
 * Whether the recording was too short for intervals to be chosen by what was measured: under half a second.
 */
short: boolean, 
/**
 * Programs whose beginnings and ends took longer too, which nobody measured and `measured` leaves out; 0 where they are
 * too few to matter: a hundredth of the time, by what one took where it was measured.
 */
beginnings: number, };

/**
 * Samples of one source.
 */
export type SourceShare = { 
/**
 * The source.
 */
source: SampleSource, 
/**
 * How many.
 */
samples: number, };

/**
 * A way on which objects of a group were allocated.
 */
export type Stack = { 
/**
 * How many of the listed objects.
 */
objects: number, 
/**
 * Innermost first.
 */
frames: Array<Frame>, };

/**
 * How the address of one instruction of one thread moves from one sample to the next, thousands of accesses later.
 */
export type Steps = { 
/**
 * Pairs of samples.
 */
count: number, 
/**
 * The largest number of bytes of which every step is a multiple: of a regular walk, its stride.
 */
stride_bytes: number, 
/**
 * The share of steps that went up, 0 to 1: near 1 or 0 for a walk, near a half for random accesses and for walks that
 * begin anew between two samples.
 */
upward: number, };

/**
 * A thread.
 */
export type Thread = { pid: Pid, tid: Tid, 
/**
 * Empty where unknown.
 */
name: string, };

/**
 * A thread's accesses.
 */
export type ThreadCounts = { 
/**
 * The thread; null where the source does not say.
 */
tid: Tid | null, 
/**
 * Pages, once for each interval.
 */
page_touches: number, 
/**
 * That read.
 */
reads: number, 
/**
 * That wrote.
 */
writes: number, };

/**
 * A thread.
 */
export type ThreadFigures = { 
/**
 * The process.
 */
pid: Pid, 
/**
 * The thread.
 */
tid: Tid, 
/**
 * Its name.
 */
name: string, 
/**
 * Operations.
 */
count: number, 
/**
 * Bytes that it asked for.
 */
requested_bytes: Bytes, 
/**
 * Bytes that it gave back, its own or others'.
 */
freed_bytes: Bytes, 
/**
 * Operations that were timed.
 */
timed: number, 
/**
 * How long its operations took, made of those that were timed; null where it is not known.
 */
time_ns: Duration | null, 
/**
 * With 95 % confidence that is no further off than this share of it; null where it is not known.
 */
time_error: number | null, 
/**
 * Why that time is not known; null where it is.
 */
time_unknown: string | null, };

/**
 * A thread's part of the samples of an object.
 */
export type ThreadPart = { 
/**
 * The process.
 */
pid: Pid, 
/**
 * The thread.
 */
tid: Tid, 
/**
 * How many.
 */
samples: number, 
/**
 * Reads among them; null where no sample says.
 */
reads: number | null, 
/**
 * Writes among them; null where no sample says.
 */
writes: number | null, 
/**
 * Latencies; null where no sample says.
 */
latency_cycles: Latency | null, 
/**
 * The time that they stand for, time at the instruction; null where they have no weight in time.
 */
time_ns: Duration | null, 
/**
 * That of samples whose access is known.
 */
access_ns: Duration | null, 
/**
 * That of samples at accesses whose address is gone: the instruction replaced the register that it came from.
 */
overwritten_ns: Duration | null, 
/**
 * That of accesses that write.
 */
write_ns: Duration | null, 
/**
 * That of samples in system calls.
 */
call_ns: Duration | null, };

/**
 * A time in which a thread uses one object most.
 */
export type ThreadPhase = { 
/**
 * Its beginning.
 */
from_ns: Time, 
/**
 * Its end.
 */
to_ns: Time, 
/**
 * The object.
 */
object: ObjectId, 
/**
 * The weight of the thread's use of it.
 */
weight: number, 
/**
 * That of everything that the thread does meanwhile.
 */
of: number, };

/**
 * Samples of a thread.
 */
export type ThreadSamples = { 
/**
 * Its process.
 */
pid: Pid, 
/**
 * The thread.
 */
tid: Tid, 
/**
 * Its name; empty where unknown.
 */
name: string, 
/**
 * How many.
 */
samples: number, 
/**
 * Reads among them; null where no sample says.
 */
reads: number | null, 
/**
 * Writes among them; null where no sample says.
 */
writes: number | null, 
/**
 * Latencies; null where no sample says.
 */
latency_cycles: Latency | null, 
/**
 * The time that they stand for, time at the instruction; null where they have no weight in time.
 */
time_ns: Duration | null, 
/**
 * That of samples whose access is known.
 */
access_ns: Duration | null, 
/**
 * That of samples at accesses whose address is gone: the instruction replaced the register that it came from.
 */
overwritten_ns: Duration | null, 
/**
 * That of accesses that write.
 */
write_ns: Duration | null, 
/**
 * That of samples in system calls.
 */
call_ns: Duration | null, };

/**
 * Pages first touched by a thread.
 */
export type ThreadShare = { 
/**
 * Its process.
 */
pid: Pid, 
/**
 * The thread.
 */
tid: Tid, 
/**
 * How many pages.
 */
pages: Pages, };

/**
 * A thread id, as the recorder's pid namespace sees it.
 */
export type Tid = number;

/**
 * A moment: `CLOCK_MONOTONIC`, nanoseconds.
 */
export type Time = number;

/**
 * The distribution of the times of one kind of operations.
 */
export type TimeFigures = { 
/**
 * How many were timed.
 */
timed: number, 
/**
 * Half of them took no longer.
 */
p50_ns: Duration, 
/**
 * 99 % of them took no longer.
 */
p99_ns: Duration, 
/**
 * The longest of those that were timed took no longer.
 */
max_ns: Duration, 
/**
 * On average.
 */
mean_ns: number, 
/**
 * With 95 % confidence it is no further off than this.
 */
mean_error_ns: number, };

/**
 * The allocator's share of the run's time, found in two ways.
 */
export type Times = { 
/**
 * CPU time of the processes' own work, as the clocks of CPUs saw it.
 */
cpu_ns: Duration, 
/**
 * How long operations took, made of those that were timed; waits for locks and for a CPU are part of it. Null where it is not known, as where none of
 * a kind was timed, or those that were timed are no sample of the others.
 */
operations_ns: Duration | null, 
/**
 * With 95 % confidence that is no further off than this share of it; null likewise.
 */
operations_error: number | null, 
/**
 * They took no less, as far as is known: system calls within them are part of it.
 */
operations_least_ns: Duration, 
/**
 * In system calls that wait (futex, nanosleep, sched_yield) and asleep until `mmap_lock` was free.
 */
waited_ns: Duration, 
/**
 * In system calls, ready to run and without a CPU: other programs' time.
 */
queued_ns: Duration, 
/**
 * The share of CPU time, by timed operations without these waits; null where CPU time is not known, and where probes counted, which take longer than
 * most operations.
 */
timed: Share | null, 
/**
 * The same by clocks that found threads within operations.
 */
sampled: Share | null, 
/**
 * The share of CPU time in loops within operations that wait for another thread, as far as they pause (the instruction `pause`); by the clocks.
 */
spinning: Share | null, 
/**
 * CPU time of allocations that neither clear nor copy memory, in the allocator's own code and not in the kernel; null where clocks saw nothing.
 */
allocating_ns: Duration | null, 
/**
 * What counting took, which is left out of `cpu_ns`: the clocks found threads at work on their tables.
 */
counting_ns: Duration, 
/**
 * Clocks that found a thread at work of the program's.
 */
samples: number, 
/**
 * Whether the two differ by more than their errors and a tenth.
 */
differ: boolean, };

/**
 * What was recorded.
 */
export type TraceSummary = { 
/**
 * The command line.
 */
command: string, 
/**
 * The processor, its number of CPUs and its memory, in words.
 */
machine: Known<string>, 
/**
 * The kernel's release.
 */
kernel: Known<string>, 
/**
 * When it began, in words; null where not recorded.
 */
started: string | null, 
/**
 * Its start on the trace's clock, which figures of groups use.
 */
start_ns: Time, 
/**
 * How long it ran.
 */
duration_ns: Duration, 
/**
 * How long the intervals are, in words; null where unknown.
 */
lengths: string | null, 
/**
 * What of the trace is shown; null where all is.
 */
selected: string | null, 
/**
 * What all times count.
 */
clock_unit: ClockUnit, 
/**
 * How many intervals the map has.
 */
intervals: number, 
/**
 * What made the trace.
 */
backend: string, 
/**
 * The tool whose record it was made of; null where Varve recorded.
 */
imported_from: string | null, 
/**
 * Whether the target ran in an emulator.
 */
is_emulated: boolean, 
/**
 * Whether every loss counter is zero.
 */
complete: boolean, 
/**
 * Whether no accessed page can be missing, whatever else may be.
 */
pages_complete: boolean, 
/**
 * The same in sentences.
 */
statement: string, 
/**
 * Loss counters that are not zero.
 */
losses: { [key in string]: number }, 
/**
 * Whether the trace distinguishes writes.
 */
written_known: boolean, };

/**
 * What a trace says of a program of which no operation was counted, because what counts did not come into it. There are no figures: zeros would say
 * that the program had called nothing.
 */
export type Uncounted = { 
/**
 * [`SCHEMA`].
 */
schema: string, 
/**
 * The recording. `limited` and `uncounted` say why nothing was counted.
 */
trace: About, 
/**
 * That it is not known whether it is the allocator.
 */
verdict: Verdict, 
/**
 * Null, as all that follows, which has the names of the figures.
 */
diagnoses: null, undecided: null, operations: null, time: null, times: null, syscalls: null, mmap_lock: null, faults: null, given_back: null, memory: null, pages: null, lines: null, choice: null, sites: null, blocks: null, classes: null, threads: null, processes: null, };

/**
 * First touches of which it is not known what they took because their memory came again.
 */
export type UnknownTouches = { 
/**
 * The share of CPU time in them, at most.
 */
at_most: Share, 
/**
 * Why it is not known, as a part of a sentence.
 */
why: string, };

/**
 * The verdict.
 */
export type Verdict = { 
/**
 * Whether it is the allocator.
 */
answer: Answer, 
/**
 * That as a sentence.
 */
sentence: string, 
/**
 * The share of CPU time within operations, 0 to 1; null where it is not known.
 */
time_share: number | null, 
/**
 * With 95 % confidence that share is no further off than this; null where it is not known.
 */
time_share_error: number | null, 
/**
 * The share of the allocator's most resident memory that nobody had asked for at the peak, 0 to 1; null where it is not known.
 */
memory_share: number | null, };

/**
 * Which part of a page is shown first.
 */
export type View = "pages" | "allocator";

/**
 * What weights count.
 */
export type WeightUnit = "accesses" | "nanoseconds" | "samples" | "first_accesses" | "pages";
