-- Views, version 1: the distribution of the working set over intervals, by service and build.
-- reads: runs, run_working_sets
-- A quantile is the smallest working set that at least this share of the intervals does not exceed. Working sets depend
-- on the length of intervals: compare builds that were recorded alike (mean_interval_ns).
WITH sizes AS (
    SELECT r.service, r.build, w.pages, CAST(sum(w.intervals) AS BIGINT) AS intervals
    FROM run_working_sets AS w
    JOIN runs AS r ON r.run = w.run
    GROUP BY r.service, r.build, w.pages
),
counted AS (
    SELECT service, build, pages,
        CAST(sum(intervals) OVER (PARTITION BY service, build ORDER BY pages ROWS UNBOUNDED PRECEDING) AS BIGINT) AS up_to,
        CAST(sum(intervals) OVER (PARTITION BY service, build) AS BIGINT) AS intervals
    FROM sizes
),
builds AS (
    SELECT r.service, r.build, min(r.date) AS first_date, count(DISTINCT r.host) AS hosts, count(DISTINCT r.run) AS runs,
        CAST(floor(sum(w.duration_ns) / sum(w.intervals)) AS BIGINT) AS mean_interval_ns
    FROM run_working_sets AS w
    JOIN runs AS r ON r.run = w.run
    GROUP BY r.service, r.build
)
SELECT b.service, b.build, b.first_date, b.hosts, b.runs, max(c.intervals) AS intervals, b.mean_interval_ns,
    min(CASE WHEN c.up_to * 10 >= c.intervals * 1 THEN c.pages END) * 4096 AS p10_bytes,
    min(CASE WHEN c.up_to * 2 >= c.intervals THEN c.pages END) * 4096 AS median_bytes,
    min(CASE WHEN c.up_to * 10 >= c.intervals * 9 THEN c.pages END) * 4096 AS p90_bytes,
    min(CASE WHEN c.up_to * 100 >= c.intervals * 99 THEN c.pages END) * 4096 AS p99_bytes,
    max(c.pages) * 4096 AS max_bytes
FROM builds AS b
JOIN counted AS c ON c.service = b.service AND c.build = b.build
GROUP BY b.service, b.build, b.first_date, b.hosts, b.runs, b.mean_interval_ns
ORDER BY b.service, b.first_date, b.build
