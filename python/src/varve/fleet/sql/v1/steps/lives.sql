-- Step, version 1: lives of objects, in pages and in slices of the recording.
-- reads: intervals, objects
-- Of objects within mappings, and of Varve's own memory in the target (is_own). `kind` is that of the object, but
--   constant: static data that is not writable. It lies in its file, processes share it, the kernel drops and rereads it.
--   shared: a mapping of memory that processes may share.
-- `lasts` says that the object was there at the end of the recording: it did not die, or in the last slice, or with its
-- process, which ended in the last interval. A process has ended where all its objects have died: the last of them, its
-- stack and its program's static data, die with it.
WITH lengths AS (
    SELECT run, min(start_ns) AS start_ns, max(start_ns) AS last_ns,
        greatest(max(end_ns) - min(start_ns), 1) AS duration_ns, count(*) AS intervals
    FROM intervals
    GROUP BY run
),
ends AS (
    SELECT run, pid, CASE WHEN count(*) = count(died_ns) THEN max(died_ns) END AS ended_ns
    FROM objects
    GROUP BY run, pid
),
-- How far what began before reaches: an object lies in a section that is not writable, or in shared memory, where that
-- is beyond its beginning. What a program had before exec, and after it, may lie at the same addresses.
reaches AS (
    SELECT run, object, address,
        max(CASE WHEN layer = 1 AND kind = 'file' THEN address + bytes END)
            OVER (PARTITION BY run, pid, born_ns ORDER BY address, layer ROWS UNBOUNDED PRECEDING) AS constant_end,
        max(CASE WHEN layer = 0 AND name = 'shared memory' THEN address + bytes END)
            OVER (PARTITION BY run, pid ORDER BY address, layer ROWS UNBOUNDED PRECEDING) AS shared_end
    FROM objects
    WHERE layer <= 2 OR layer >= 6
),
dated AS (
    SELECT o.run, o.pid, o.object, o.name, o.symbol, o.place, o.layer, o.address, o.bytes, o.died_ns, e.ended_ns, l.last_ns,
        CASE WHEN o.kind = 'static' AND o.layer >= 6 AND r.constant_end > o.address THEN 'constant'
            WHEN o.kind = 'mapping' AND o.layer = 2 AND r.shared_end > o.address THEN 'shared'
            ELSE o.kind END AS kind,
        CAST(least(greatest(floor((o.born_ns - l.start_ns) * 16 / l.duration_ns), 0), 15) AS INT) AS born_slice,
        CAST(least(greatest(floor((coalesce(o.died_ns, l.start_ns + l.duration_ns) - l.start_ns) * 16 / l.duration_ns), 0), 15) AS INT) AS died_slice,
        l.intervals,
        least(greatest(coalesce(o.died_ns, l.start_ns + l.duration_ns) - greatest(o.born_ns, l.start_ns), 0), l.duration_ns)
            / l.duration_ns AS share
    FROM objects AS o
    JOIN lengths AS l ON l.run = o.run
    JOIN ends AS e ON e.run = o.run AND e.pid = o.pid
    LEFT JOIN reaches AS r ON r.run = o.run AND r.object = o.object
    WHERE o.layer >= 2 OR o.kind = 'recorder'
)
SELECT run, pid, object, kind, name, symbol, place, layer, bytes, intervals, share, born_slice, died_slice,
    kind = 'recorder' AS is_own,
    shiftright(address + 4095, 12) AS first_page, shiftright(address + bytes, 12) AS end_page,
    died_ns IS NULL OR died_slice = 15 OR coalesce(died_ns >= ended_ns AND ended_ns >= last_ns, false) AS lasts
FROM dated
