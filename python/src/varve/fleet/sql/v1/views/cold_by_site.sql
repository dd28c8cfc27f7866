-- Views, version 1: memory that lies idle, and what was never touched, by service and allocation site.
-- reads: runs, run_sites
-- Bytes are means over the runs of the service that have the site: a run's live_bytes and never_touched_bytes are means
-- over its recording, its cold_bytes are those of its end. What was never touched takes address space and, as a rule, no
-- memory. `fleet_cold_bytes` and `fleet_never_touched_bytes` are sums over hosts of a host's mean: what the hosts that
-- were recorded have of it at a time, with one process group each. Heap, private mappings and writable static data.
WITH by_run AS (
    SELECT r.service, r.host, r.build, s.kind, s.symbol, s.place, s.name, s.objects, s.live_bytes,
        s.never_touched_bytes, s.cold_bytes
    FROM run_sites AS s
    JOIN runs AS r ON r.run = s.run
    WHERE s.kind IN ('heap', 'mapping', 'static')
),
by_host AS (
    SELECT service, kind, symbol, place, host,
        CAST(floor(sum(cold_bytes) / nullif(count(cold_bytes), 0)) AS BIGINT) AS cold_bytes,
        CAST(floor(sum(never_touched_bytes) / count(*)) AS BIGINT) AS never_touched_bytes
    FROM by_run
    GROUP BY service, kind, symbol, place, host
),
fleet AS (
    SELECT service, kind, symbol, place, count(*) AS hosts, CAST(sum(cold_bytes) AS BIGINT) AS cold_bytes,
        CAST(sum(never_touched_bytes) AS BIGINT) AS never_touched_bytes
    FROM by_host
    GROUP BY service, kind, symbol, place
),
sites AS (
    SELECT service, kind, symbol, place, max(name) AS name, count(DISTINCT build) AS builds, count(*) AS runs,
        CAST(floor(sum(objects) / count(*)) AS BIGINT) AS objects,
        CAST(floor(sum(live_bytes) / count(*)) AS BIGINT) AS live_bytes,
        CAST(floor(sum(never_touched_bytes) / count(*)) AS BIGINT) AS never_touched_bytes,
        CAST(floor(sum(cold_bytes) / nullif(count(cold_bytes), 0)) AS BIGINT) AS cold_bytes
    FROM by_run
    GROUP BY service, kind, symbol, place
)
SELECT s.service, s.kind, s.name AS site, s.place, s.builds, f.hosts, s.runs, s.objects, s.live_bytes, s.cold_bytes,
    f.cold_bytes AS fleet_cold_bytes, s.never_touched_bytes, f.never_touched_bytes AS fleet_never_touched_bytes
FROM sites AS s
JOIN fleet AS f ON f.service = s.service AND f.kind = s.kind AND f.symbol = s.symbol AND f.place = s.place
WHERE f.cold_bytes > 0 OR f.never_touched_bytes > 0
ORDER BY fleet_cold_bytes DESC NULLS LAST, fleet_never_touched_bytes DESC, s.service, s.kind, s.symbol, s.place
