-- The place in launch order (place_ns) of each activity that starts in [$from, $until). Activities without a launching
-- call take the place of their predecessor on the stream, which may start before $from (table carried). Activities
-- before any launched one were launched before the capture (null). In a process without recorded launches, an
-- activity's own start is its place.
SELECT l.*,
       CASE WHEN w.process IS NULL THEN l.start_ns
            ELSE coalesce(last_value(l.launch_start_ns IGNORE NULLS) OVER stream_so_far, c.place_ns)
       END AS place_ns
FROM launched l
LEFT JOIN with_launches w ON l.process = w.process
LEFT JOIN carried c
       ON l.process = c.process AND l.device IS NOT DISTINCT FROM c.device AND l.stream IS NOT DISTINCT FROM c.stream
WHERE l.start_ns >= $from AND l.start_ns < $until
WINDOW stream_so_far AS (
    PARTITION BY l.process, l.device, l.stream ORDER BY l.start_ns, l.end_ns, l.launch_start_ns
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
)
