-- Facts, version 1: how often each size of the working set occurs in a run.
-- reads: touched_blocks, intervals
-- columns: run, pages (distinct 4 KiB pages of all processes touched in an interval), intervals, duration_ns (theirs)
WITH touched AS (
    SELECT run, interval_number, CAST(sum(bit_count(bits)) AS BIGINT) AS pages
    FROM touched_blocks
    GROUP BY run, interval_number
)
SELECT i.run, coalesce(t.pages, 0) AS pages, count(*) AS intervals,
    CAST(sum(i.end_ns - i.start_ns) AS BIGINT) AS duration_ns
FROM intervals AS i
LEFT JOIN touched AS t ON t.run = i.run AND t.interval_number = i.interval_number
GROUP BY i.run, coalesce(t.pages, 0)
