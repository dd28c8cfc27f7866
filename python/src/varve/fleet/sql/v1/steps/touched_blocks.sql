-- Step, version 1: touched pages as bits: bit n of a block stands for its page 62 * block + n.
-- reads: touches
-- A page that several rows name counts once. What only others may have touched (possibly_others) does not count.
-- So many bits a positive number has beside the one above them. What is divided is a multiple: the quotient is exact.
WITH cut AS (
    SELECT run, interval_number, pid, CAST((page - page % 62) / 62 AS BIGINT) AS block, page % 62 AS from_bit,
        page % 62 + pages AS to_bit
    FROM touches
    WHERE source <> 'possibly_others' AND page % 62 + pages <= 62
    UNION ALL
    SELECT run, interval_number, pid, block, greatest(page - block * 62, 0) AS from_bit,
        least(page + pages - block * 62, 62) AS to_bit
    FROM (
        SELECT run, interval_number, pid, page, pages,
            explode(sequence(CAST((page - page % 62) / 62 AS BIGINT),
                CAST((page + pages - 1 - (page + pages - 1) % 62) / 62 AS BIGINT))) AS block
        FROM touches
        WHERE source <> 'possibly_others' AND page % 62 + pages > 62
    ) AS spread
)
SELECT run, interval_number, pid, block,
    bit_or(shiftleft(CAST(1 AS BIGINT), CAST(to_bit AS INT)) - shiftleft(CAST(1 AS BIGINT), CAST(from_bit AS INT))) AS bits
FROM cut
GROUP BY run, interval_number, pid, block
