-- Views, version 1: cache lines that threads share falsely, by service, object and place within it.
-- reads: runs, run_lines
-- `share_permille` is the mean, over the runs that show the line, of its share of the weight of all sampled accesses:
-- time at the instruction, no number of accesses. Samples find what is frequent; what is not listed may exist.
WITH by_run AS (
    SELECT r.run, r.service, r.build, r.host, l.kind, l.symbol, l.place, l.offset_bytes, max(l.name) AS name,
        CAST(sum(l.events) AS BIGINT) AS events, CAST(sum(l.writes) AS BIGINT) AS writes, CAST(sum(l.turns) AS BIGINT) AS turns,
        CAST(floor(sum(l.weight) * 1000 / max(l.run_weight)) AS BIGINT) AS share_permille,
        min(l.code) AS code, max(l.other_code) AS other_code
    FROM run_lines AS l
    JOIN runs AS r ON r.run = l.run
    GROUP BY r.run, r.service, r.build, r.host, l.kind, l.symbol, l.place, l.offset_bytes
)
SELECT service, kind, max(name) AS object, place, offset_bytes, count(DISTINCT build) AS builds, count(DISTINCT host) AS hosts,
    count(*) AS runs, CAST(sum(events) AS BIGINT) AS events, CAST(sum(writes) AS BIGINT) AS writes,
    CAST(sum(turns) AS BIGINT) AS turns, CAST(floor(sum(share_permille) / count(*)) AS BIGINT) AS share_permille,
    min(code) AS code, max(other_code) AS other_code
FROM by_run
GROUP BY service, kind, symbol, place, offset_bytes
ORDER BY runs DESC, share_permille DESC, service, kind, symbol, place, offset_bytes
