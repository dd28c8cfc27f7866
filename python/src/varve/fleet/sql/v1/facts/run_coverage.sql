-- Facts, version 1: how much of a run's touched memory its sites know of.
-- reads: lives, site_blocks, touched_slices
-- columns: run, touched_bytes (distinct pages of all processes, without Varve's own), covered_bytes (those of them that
--   lie wholly within an object of the kinds heap, mapping and static of `run_sites`, while it lived)
-- What is not covered: code and other files, stacks, objects below a page, and memory that was allocated before the
-- recorder was there, or by nobody that it knows: most of the heap of a process that ran already.
WITH touched AS (
    SELECT run, pid, block, bit_or(bits) AS bits
    FROM touched_slices
    GROUP BY run, pid, block
),
known AS (
    SELECT b.run, b.pid, b.block,
        bit_or(CASE WHEN l.kind IN ('heap', 'mapping', 'static') AND NOT l.is_own THEN b.touched_bits ELSE 0 END) AS covered,
        bit_or(CASE WHEN l.is_own THEN b.touched_bits ELSE 0 END) AS own
    FROM site_blocks AS b
    JOIN lives AS l ON l.run = b.run AND l.object = b.object
    GROUP BY b.run, b.pid, b.block
)
SELECT t.run, CAST(sum(bit_count(t.bits & ~coalesce(k.own, 0))) * 4096 AS BIGINT) AS touched_bytes,
    CAST(sum(bit_count(coalesce(k.covered, 0) & ~coalesce(k.own, 0))) * 4096 AS BIGINT) AS covered_bytes
FROM touched AS t
LEFT JOIN known AS k ON k.run = t.run AND k.pid = t.pid AND k.block = t.block
GROUP BY t.run
