-- Facts, version 1: cache lines of 64 bytes in which two threads of a run meet at different bytes, by samples.
-- reads: samples, objects
-- columns: run, kind, name, symbol, place (of the object), offset_bytes (of the first byte that either thread was seen
--   at, from the object's beginning), events, writes, turns (how often the next sample was of the other thread),
--   weight, run_weight (of all samples with a known access; nanoseconds, or samples where they have no time),
--   code and other_code (where the two threads were seen most)
-- Of the two busiest threads each has five samples or more, one writes, they take turns four times or more, and the
-- bytes from the first to the last that one was seen at are apart from the other's. An access whose size is not known
-- counts as the 16 aligned bytes around it.
WITH totals AS (
    SELECT run, CAST(sum(coalesce(weight_ns, 1)) AS BIGINT) AS run_weight
    FROM samples
    WHERE address IS NOT NULL
    GROUP BY run
),
-- Most lines have few samples: threads that are in no pair go before they are ranked.
threads AS (
    SELECT run, pid, shiftright(address, 6) AS line, tid, count(*) AS events,
        CAST(sum(CASE WHEN is_write THEN 1 ELSE 0 END) AS BIGINT) AS writes, CAST(sum(coalesce(weight_ns, 1)) AS BIGINT) AS weight,
        min(CASE WHEN bytes IS NULL THEN address & 48 ELSE address & 63 END) AS from_byte,
        max(CASE WHEN bytes IS NULL THEN (address & 48) + 16 ELSE least((address & 63) + greatest(bytes, 1), 64) END) AS to_byte,
        max(object) AS object
    FROM samples
    WHERE address IS NOT NULL AND tid IS NOT NULL AND object IS NOT NULL
    GROUP BY run, pid, shiftright(address, 6), tid
    HAVING count(*) >= 5
),
ranked AS (
    SELECT run, pid, line, tid, events, writes, weight, from_byte, to_byte, object,
        row_number() OVER (PARTITION BY run, pid, line ORDER BY events DESC, tid) AS busiest
    FROM threads
),
pairs AS (
    SELECT a.run, a.pid, a.line, a.tid, b.tid AS other_tid, a.object, a.events + b.events AS events,
        a.writes + b.writes AS writes, a.weight + b.weight AS weight, least(a.from_byte, b.from_byte) AS from_byte
    FROM ranked AS a
    JOIN ranked AS b ON b.run = a.run AND b.pid = a.pid AND b.line = a.line AND b.busiest = 2
    WHERE a.busiest = 1 AND a.writes + b.writes > 0
        AND (a.to_byte <= b.from_byte OR b.to_byte <= a.from_byte)
),
hits AS (
    SELECT s.run, s.pid, p.line, s.tid, s.time_ns, coalesce(s.code, '') AS code, coalesce(s.weight_ns, 1) AS weight
    FROM samples AS s
    JOIN pairs AS p ON p.run = s.run AND p.pid = s.pid AND p.line = shiftright(s.address, 6)
    WHERE s.tid = p.tid OR s.tid = p.other_tid
),
order_of_hits AS (
    SELECT run, pid, line, tid, lag(tid) OVER (PARTITION BY run, pid, line ORDER BY time_ns, tid) AS before_tid
    FROM hits
),
turns AS (
    SELECT run, pid, line, CAST(sum(CASE WHEN tid <> before_tid THEN 1 ELSE 0 END) AS BIGINT) AS turns
    FROM order_of_hits
    GROUP BY run, pid, line
),
codes AS (
    SELECT run, pid, line, tid, code,
        row_number() OVER (PARTITION BY run, pid, line, tid ORDER BY weight DESC, code) AS heaviest
    FROM (
        SELECT run, pid, line, tid, code, sum(weight) AS weight
        FROM hits
        GROUP BY run, pid, line, tid, code
    ) AS by_code
)
SELECT p.run, o.kind, o.name, o.symbol, o.place, p.line * 64 + p.from_byte - o.address AS offset_bytes,
    p.events, p.writes, t.turns, p.weight, w.run_weight, a.code, b.code AS other_code
FROM pairs AS p
JOIN turns AS t ON t.run = p.run AND t.pid = p.pid AND t.line = p.line
JOIN totals AS w ON w.run = p.run
JOIN objects AS o ON o.run = p.run AND o.object = p.object
JOIN codes AS a ON a.run = p.run AND a.pid = p.pid AND a.line = p.line AND a.tid = p.tid AND a.heaviest = 1
JOIN codes AS b ON b.run = p.run AND b.pid = p.pid AND b.line = p.line AND b.tid = p.other_tid AND b.heaviest = 1
WHERE t.turns >= 4
