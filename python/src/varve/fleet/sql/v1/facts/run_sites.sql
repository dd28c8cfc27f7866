-- Facts, version 1: what becomes of the memory of each allocation site in a run.
-- reads: lives, site_blocks
-- columns: run, kind (heap; mapping: private; static: writable; constant: static and not writable; shared: a mapping of
--   shared memory), name (as the build has it), symbol (the name without lines), place (distance from the function's
--   first line), objects, allocated_bytes (of all lives), live_bytes (mean over the recording),
--   never_touched_bytes (mean over the recording), touched_bytes (distinct pages, over all lives),
--   cold_bytes (of objects that are there at the end: touched, but not in the last quarter; null below four intervals)
-- Of static data and shared memory, figures are the largest of a process: its processes may share their pages.
-- Never-touched and cold bytes are lower bounds.
WITH by_object AS (
    SELECT run, object, CAST(sum(bit_count(bits)) AS BIGINT) AS pages,
        CAST(sum(bit_count(touched_bits)) AS BIGINT) AS touched,
        CAST(sum(bit_count(touched_bits & ~late_bits)) AS BIGINT) AS cold
    FROM site_blocks
    GROUP BY run, object
),
by_process AS (
    SELECT l.run, l.pid, l.kind, max(l.name) AS name, l.symbol, l.place, count(*) AS objects, min(l.intervals) AS intervals,
        CAST(sum(l.bytes) AS BIGINT) AS allocated_bytes,
        CAST(sum(CAST(floor(l.bytes * l.share) AS BIGINT)) AS BIGINT) AS live_bytes,
        CAST(sum(CAST(floor((coalesce(p.pages, 0) - coalesce(p.touched, 0)) * 4096 * l.share) AS BIGINT)) AS BIGINT) AS never_touched_bytes,
        CAST(sum(coalesce(p.touched, 0) * 4096) AS BIGINT) AS touched_bytes,
        CAST(sum(CASE WHEN l.lasts THEN coalesce(p.cold, 0) * 4096 ELSE 0 END) AS BIGINT) AS cold_bytes
    FROM lives AS l
    LEFT JOIN by_object AS p ON p.run = l.run AND p.object = l.object
    WHERE l.kind IN ('heap', 'mapping', 'static', 'constant', 'shared') AND NOT l.is_own
    GROUP BY l.run, l.pid, l.kind, l.symbol, l.place
),
by_run AS (
    SELECT run, kind, max(name) AS name, symbol, place, min(intervals) AS intervals, kind IN ('heap', 'mapping') AS adds_up,
        sum(objects) AS objects, max(objects) AS most_objects,
        sum(allocated_bytes) AS allocated_bytes, max(allocated_bytes) AS most_allocated_bytes,
        sum(live_bytes) AS live_bytes, max(live_bytes) AS most_live_bytes,
        sum(never_touched_bytes) AS never_touched_bytes, max(never_touched_bytes) AS most_never_touched_bytes,
        sum(touched_bytes) AS touched_bytes, max(touched_bytes) AS most_touched_bytes,
        sum(cold_bytes) AS cold_bytes, max(cold_bytes) AS most_cold_bytes
    FROM by_process
    GROUP BY run, kind, symbol, place
)
SELECT run, kind, name, symbol, place,
    CAST(CASE WHEN adds_up THEN objects ELSE most_objects END AS BIGINT) AS objects,
    CAST(CASE WHEN adds_up THEN allocated_bytes ELSE most_allocated_bytes END AS BIGINT) AS allocated_bytes,
    CAST(CASE WHEN adds_up THEN live_bytes ELSE most_live_bytes END AS BIGINT) AS live_bytes,
    CAST(CASE WHEN adds_up THEN never_touched_bytes ELSE most_never_touched_bytes END AS BIGINT) AS never_touched_bytes,
    CAST(CASE WHEN adds_up THEN touched_bytes ELSE most_touched_bytes END AS BIGINT) AS touched_bytes,
    CAST(CASE WHEN intervals >= 4 THEN CASE WHEN adds_up THEN cold_bytes ELSE most_cold_bytes END END AS BIGINT) AS cold_bytes
FROM by_run
