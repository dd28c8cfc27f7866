-- Views, version 1: hosts whose runs differ from those of the other hosts of the same service and build.
-- reads: runs, run_sites, run_working_sets
-- A host's figure is the median over its runs; the fleet's is the median over hosts. A host is listed where it is
-- farther away than ten times the median distance of the hosts, and than 10 % and 64 KiB, and there are five hosts or more.
WITH working_sets AS (
    SELECT run, pages,
        sum(intervals) OVER (PARTITION BY run ORDER BY pages ROWS UNBOUNDED PRECEDING) AS up_to,
        sum(intervals) OVER (PARTITION BY run) AS intervals
    FROM run_working_sets
),
-- What is in files or shared is no memory of the run alone.
private_sites AS (
    SELECT run, live_bytes, never_touched_bytes, cold_bytes
    FROM run_sites
    WHERE kind IN ('heap', 'mapping', 'static')
),
figures AS (
    SELECT run, 'working_set' AS figure, min(pages) * 4096 AS bytes
    FROM working_sets
    WHERE up_to * 2 >= intervals
    GROUP BY run
    UNION ALL
    SELECT run, 'live' AS figure, CAST(sum(live_bytes) AS BIGINT) AS bytes FROM private_sites GROUP BY run
    UNION ALL
    SELECT run, 'never_touched' AS figure, CAST(sum(never_touched_bytes) AS BIGINT) AS bytes FROM private_sites GROUP BY run
    UNION ALL
    SELECT run, 'cold' AS figure, CAST(sum(cold_bytes) AS BIGINT) AS bytes FROM private_sites GROUP BY run HAVING count(cold_bytes) > 0
),
ordered AS (
    SELECT r.service, r.build, r.host, f.figure, f.bytes,
        row_number() OVER (PARTITION BY r.service, r.build, r.host, f.figure ORDER BY f.bytes) AS position,
        count(*) OVER (PARTITION BY r.service, r.build, r.host, f.figure) AS runs
    FROM figures AS f
    JOIN runs AS r ON r.run = f.run
),
by_host AS (
    SELECT service, build, host, figure, max(runs) AS runs, min(CASE WHEN position * 2 >= runs THEN bytes END) AS bytes
    FROM ordered
    GROUP BY service, build, host, figure
),
placed AS (
    SELECT service, build, host, figure, runs, bytes,
        row_number() OVER (PARTITION BY service, build, figure ORDER BY bytes, host) AS position,
        count(*) OVER (PARTITION BY service, build, figure) AS hosts
    FROM by_host
),
middles AS (
    SELECT service, build, figure, min(CASE WHEN position * 2 >= hosts THEN bytes END) AS fleet_bytes
    FROM placed
    GROUP BY service, build, figure
),
distances AS (
    SELECT p.service, p.build, p.host, p.figure, p.runs, p.hosts, p.bytes, m.fleet_bytes, abs(p.bytes - m.fleet_bytes) AS distance,
        row_number() OVER (PARTITION BY p.service, p.build, p.figure ORDER BY abs(p.bytes - m.fleet_bytes), p.host) AS position
    FROM placed AS p
    JOIN middles AS m ON m.service = p.service AND m.build = p.build AND m.figure = p.figure
),
spreads AS (
    SELECT service, build, figure, min(CASE WHEN position * 2 >= hosts THEN distance END) AS spread_bytes
    FROM distances
    GROUP BY service, build, figure
)
SELECT d.service, d.build, d.host, d.figure, d.runs, d.hosts, d.bytes, d.fleet_bytes, s.spread_bytes
FROM distances AS d
JOIN spreads AS s ON s.service = d.service AND s.build = d.build AND s.figure = d.figure
WHERE d.hosts >= 5 AND d.distance > 10 * s.spread_bytes AND d.distance >= 65536 AND d.distance * 10 >= d.fleet_bytes
ORDER BY d.distance DESC, d.service, d.build, d.figure, d.host
