-- Activities without a launching call follow their predecessor on the stream; those before any launched one of
-- their stream were launched before the capture (place null). Where a process recorded no call at all, their
-- own start places them. Used only where there are such activities: the window costs a sort.
CREATE TEMP TABLE placed AS
WITH with_launches AS (
    SELECT DISTINCT process FROM launched WHERE launch_start_ns IS NOT NULL
)
SELECT l.* EXCLUDE (place_ns),
       CASE WHEN w.process IS NULL THEN l.start_ns
            ELSE last_value(l.launch_start_ns IGNORE NULLS) OVER stream_so_far
       END AS place_ns
FROM launched l
LEFT JOIN with_launches w ON l.process = w.process
WINDOW stream_so_far AS (
    PARTITION BY l.process, l.device, l.stream ORDER BY l.start_ns, l.end_ns
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
)
