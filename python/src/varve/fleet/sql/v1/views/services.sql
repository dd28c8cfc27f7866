-- Views, version 1: what the store has, by service and build.
-- reads: runs
-- `losses` are the loss counters that are not zero in some run: what is missing there, no number.
WITH counters AS (
    SELECT service, build, explode(split(losses, ', ')) AS counter
    FROM runs
    WHERE losses <> ''
),
named AS (
    SELECT service, build, array_join(array_sort(collect_set(counter)), ', ') AS losses
    FROM counters
    GROUP BY service, build
)
SELECT r.service, r.build, count(DISTINCT r.host) AS hosts, count(*) AS runs, min(r.date) AS first_date, max(r.date) AS last_date,
    CAST(sum(r.duration_ns) AS BIGINT) AS duration_ns,
    CAST(sum(CASE WHEN r.complete THEN 0 ELSE 1 END) AS BIGINT) AS incomplete_runs, max(n.losses) AS losses
FROM runs AS r
LEFT JOIN named AS n ON n.service = r.service AND n.build = r.build
GROUP BY r.service, r.build
ORDER BY service, first_date, build
