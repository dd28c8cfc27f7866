-- Views, version 1: figures that a service's next build makes larger.
-- reads: runs, run_sites, run_working_sets
-- Builds of a service follow each other in the order of their first run. A figure is compared by its median over runs:
-- it is listed where that grows by 5 % and 64 KiB or more and both builds have three runs. `clear` says that three of
-- four runs after are above three of four runs before. A site that a run lacks has 0 there.
WITH firsts AS (
    SELECT service, build, min(start_unix_ns) AS first_ns
    FROM runs
    GROUP BY service, build
),
steps AS (
    SELECT service, build, lag(build) OVER (PARTITION BY service ORDER BY first_ns, build) AS before_build
    FROM firsts
),
working_sets AS (
    SELECT run, pages,
        sum(intervals) OVER (PARTITION BY run ORDER BY pages ROWS UNBOUNDED PRECEDING) AS up_to,
        sum(intervals) OVER (PARTITION BY run) AS intervals
    FROM run_working_sets
),
figures AS (
    SELECT run, 'working_set' AS figure, '' AS kind, '' AS symbol, '' AS place, min(pages) * 4096 AS bytes
    FROM working_sets
    WHERE up_to * 2 >= intervals
    GROUP BY run
    UNION ALL
    SELECT run, 'live' AS figure, kind, symbol, place, live_bytes AS bytes FROM run_sites
    UNION ALL
    SELECT run, 'touched' AS figure, kind, symbol, place, touched_bytes AS bytes FROM run_sites
    UNION ALL
    SELECT run, 'never_touched' AS figure, kind, symbol, place, never_touched_bytes AS bytes FROM run_sites
),
-- Runs that such a figure is known of.
able AS (
    SELECT r.service, r.build, f.figure, count(DISTINCT f.run) AS runs
    FROM figures AS f
    JOIN runs AS r ON r.run = f.run
    GROUP BY r.service, r.build, f.figure
),
-- The place of each value among those of all runs: runs without the site come first, with 0.
ordered AS (
    SELECT r.service, r.build, f.figure, f.kind, f.symbol, f.place, f.bytes, b.runs,
        b.runs - count(*) OVER (PARTITION BY r.service, r.build, f.figure, f.kind, f.symbol, f.place)
            + row_number() OVER (PARTITION BY r.service, r.build, f.figure, f.kind, f.symbol, f.place ORDER BY f.bytes) AS position
    FROM figures AS f
    JOIN runs AS r ON r.run = f.run
    JOIN able AS b ON b.service = r.service AND b.build = r.build AND b.figure = f.figure
),
quantiles AS (
    SELECT service, build, figure, kind, symbol, place,
        min(position) AS lowest, min(runs) AS runs,
        min(CASE WHEN position * 4 >= runs THEN bytes END) AS low,
        min(CASE WHEN position * 2 >= runs THEN bytes END) AS middle,
        min(CASE WHEN position * 4 >= runs * 3 THEN bytes END) AS high
    FROM ordered
    GROUP BY service, build, figure, kind, symbol, place
),
whole AS (
    -- A quantile that falls among the runs without the site is 0.
    SELECT service, build, figure, kind, symbol, place,
        CASE WHEN (lowest - 1) * 4 >= runs THEN 0 ELSE low END AS low,
        CASE WHEN (lowest - 1) * 2 >= runs THEN 0 ELSE middle END AS middle,
        CASE WHEN (lowest - 1) * 4 >= runs * 3 THEN 0 ELSE high END AS high
    FROM quantiles
)
SELECT s.service, s.before_build, s.build AS after_build, n.runs AS before_runs, m.runs AS after_runs, a.figure, a.kind,
    a.symbol AS site, a.place, coalesce(b.middle, 0) AS before_bytes, a.middle AS after_bytes,
    a.middle - coalesce(b.middle, 0) AS growth_bytes, a.low > coalesce(b.high, 0) AS clear
FROM steps AS s
JOIN whole AS a ON a.service = s.service AND a.build = s.build
JOIN able AS m ON m.service = s.service AND m.build = s.build AND m.figure = a.figure
JOIN able AS n ON n.service = s.service AND n.build = s.before_build AND n.figure = a.figure
LEFT JOIN whole AS b ON b.service = s.service AND b.build = s.before_build AND b.figure = a.figure AND b.kind = a.kind
    AND b.symbol = a.symbol AND b.place = a.place
WHERE m.runs >= 3 AND n.runs >= 3
    AND a.middle - coalesce(b.middle, 0) >= 65536 AND (a.middle - coalesce(b.middle, 0)) * 20 >= coalesce(b.middle, 0)
ORDER BY growth_bytes DESC, s.service, s.before_build, s.build, a.figure, a.kind, a.symbol, a.place
