-- Step, version 1: touched pages by slice: a recording is cut into 16 slices, and an interval reaches from one to another.
-- reads: touched_blocks, intervals
WITH lengths AS (
    SELECT run, min(start_ns) AS start_ns, greatest(max(end_ns) - min(start_ns), 1) AS duration_ns
    FROM intervals
    GROUP BY run
),
slices AS (
    SELECT i.run, i.interval_number,
        CAST(least(floor((i.start_ns - l.start_ns) * 16 / l.duration_ns), 15) AS INT) AS from_slice,
        CAST(least(floor((i.end_ns - l.start_ns) * 16 / l.duration_ns), 15) AS INT) AS to_slice
    FROM intervals AS i
    JOIN lengths AS l ON l.run = i.run
)
SELECT c.run, c.pid, c.block, s.from_slice, s.to_slice, bit_or(c.bits) AS bits
FROM touched_blocks AS c
JOIN slices AS s ON s.run = c.run AND s.interval_number = c.interval_number
GROUP BY c.run, c.pid, c.block, s.from_slice, s.to_slice
