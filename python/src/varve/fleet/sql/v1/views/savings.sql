-- Views, version 1: how much memory could be saved, by service: memory that was touched and lies idle.
-- reads: runs, run_sites, run_coverage
-- `cold_bytes` (at a run's end, touched, and not in its last quarter) are resident and could lie in slower memory; they
-- are a lower bound, and `cold_permille` their share of touched memory. Sites know of `covered_permille` of what is
-- touched: nothing is said of the rest. `never_touched_bytes` (mean over the recording) take address space and, as a
-- rule, no memory: giving them up saves none. Heap, private mappings and writable static data count; data that lies in
-- files, or that processes share, does not. Means over a host's runs, summed over hosts.
WITH sites AS (
    SELECT run, sum(live_bytes) AS live_bytes, sum(never_touched_bytes) AS never_touched_bytes, sum(cold_bytes) AS cold_bytes
    FROM run_sites
    WHERE kind IN ('heap', 'mapping', 'static')
    GROUP BY run
),
by_host AS (
    SELECT r.service, r.host, count(*) AS runs,
        CAST(floor(sum(c.touched_bytes) / count(*)) AS BIGINT) AS touched_bytes,
        CAST(floor(sum(c.covered_bytes) / count(*)) AS BIGINT) AS covered_bytes,
        CAST(floor(sum(coalesce(s.live_bytes, 0)) / count(*)) AS BIGINT) AS live_bytes,
        CAST(floor(sum(coalesce(s.never_touched_bytes, 0)) / count(*)) AS BIGINT) AS never_touched_bytes,
        CAST(floor(sum(s.cold_bytes) / nullif(count(s.cold_bytes), 0)) AS BIGINT) AS cold_bytes
    FROM run_coverage AS c
    JOIN runs AS r ON r.run = c.run
    LEFT JOIN sites AS s ON s.run = c.run
    GROUP BY r.service, r.host
),
by_service AS (
    SELECT service, count(*) AS hosts, CAST(sum(runs) AS BIGINT) AS runs, CAST(sum(touched_bytes) AS BIGINT) AS touched_bytes,
        CAST(floor(sum(covered_bytes) * 1000 / greatest(sum(touched_bytes), 1)) AS BIGINT) AS covered_permille,
        CAST(sum(cold_bytes) AS BIGINT) AS cold_bytes,
        CAST(floor(sum(cold_bytes) * 1000
            / greatest(sum(CASE WHEN cold_bytes IS NOT NULL THEN touched_bytes END), 1)) AS BIGINT) AS cold_permille,
        CAST(sum(live_bytes) AS BIGINT) AS live_bytes, CAST(sum(never_touched_bytes) AS BIGINT) AS never_touched_bytes
    FROM by_host
    GROUP BY service
)
SELECT service, hosts, runs, touched_bytes, covered_permille, cold_bytes, cold_permille, live_bytes, never_touched_bytes
FROM by_service
ORDER BY cold_bytes DESC NULLS LAST, service
