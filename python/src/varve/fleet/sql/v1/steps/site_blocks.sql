-- Step, version 1: pages of objects as bits, and which of them were touched while the object lived, and in the last quarter.
-- reads: lives, touched_slices
-- Only pages that lie wholly within an object count, for the innermost such object. A touch at the edge of a life counts
-- for it. Objects above 64 GiB have no pages here.
WITH spans AS (
    SELECT run, pid, object, layer, first_page, end_page, born_slice, died_slice,
        explode(sequence(CAST((first_page - first_page % 62) / 62 AS BIGINT),
            CAST((end_page - 1 - (end_page - 1) % 62) / 62 AS BIGINT))) AS block
    FROM lives
    WHERE end_page > first_page AND end_page - first_page <= 16777216
),
covers AS (
    SELECT run, pid, object, layer, block, born_slice, died_slice,
        shiftleft(CAST(1 AS BIGINT), CAST(least(end_page - block * 62, 62) AS INT))
            - shiftleft(CAST(1 AS BIGINT), CAST(greatest(first_page - block * 62, 0) AS INT)) AS bits
    FROM spans
),
-- Mappings with a call site may hold heap objects, whose pages are not theirs.
inner_bits AS (
    SELECT m.run, m.object, m.block, bit_or(h.bits) AS bits
    FROM covers AS m
    JOIN covers AS h ON h.run = m.run AND h.pid = m.pid AND h.block = m.block
    WHERE m.layer = 2 AND h.layer > 2 AND h.born_slice <= m.died_slice AND h.died_slice >= m.born_slice
    GROUP BY m.run, m.object, m.block
),
own AS (
    SELECT c.run, c.pid, c.object, c.block, c.born_slice, c.died_slice, c.bits & ~coalesce(i.bits, 0) AS bits
    FROM covers AS c
    LEFT JOIN inner_bits AS i ON i.run = c.run AND i.object = c.object AND i.block = c.block
)
SELECT o.run, o.pid, o.object, o.block, o.bits, coalesce(bit_or(o.bits & t.bits), 0) AS touched_bits,
    coalesce(bit_or(CASE WHEN t.to_slice >= 12 THEN o.bits & t.bits END), 0) AS late_bits
FROM own AS o
LEFT JOIN touched_slices AS t ON t.run = o.run AND t.pid = o.pid AND t.block = o.block
    AND t.to_slice >= o.born_slice AND t.from_slice <= o.died_slice
GROUP BY o.run, o.pid, o.object, o.block, o.bits
