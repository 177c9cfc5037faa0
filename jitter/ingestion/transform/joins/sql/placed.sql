-- The place in launch order (place_ns) of each activity that starts in [$from, $until). Activities without a launching
-- call take the place of their predecessor on the stream, which may start before $from (table carried). Activities
-- before any launched one were launched before the capture (null). In a process without recorded launches, an
-- activity's own start is its place. An activity without a launch was launched at latest_ns or before: when it started,
-- or when its successor on the stream was launched, which may start from $until on (table following).
SELECT l.*,
       CASE WHEN w.process IS NULL THEN l.start_ns
            ELSE coalesce(last_value(l.launch_start_ns IGNORE NULLS) OVER stream_so_far, c.place_ns)
       END AS place_ns,
       CASE WHEN w.process IS NULL THEN l.start_ns
            ELSE coalesce(
                l.launch_start_ns,
                least(l.start_ns, coalesce(first_value(l.launch_start_ns IGNORE NULLS) OVER stream_from_here, f.latest_ns))
            )
       END AS latest_ns
FROM launched l
LEFT JOIN with_launches w ON l.process = w.process
LEFT JOIN carried c
       ON l.process = c.process AND l.device IS NOT DISTINCT FROM c.device AND l.stream IS NOT DISTINCT FROM c.stream
LEFT JOIN following f
       ON l.process = f.process AND l.device IS NOT DISTINCT FROM f.device AND l.stream IS NOT DISTINCT FROM f.stream
WHERE l.start_ns >= $from AND l.start_ns < $until
WINDOW stream_so_far AS (
    PARTITION BY l.process, l.device, l.stream ORDER BY l.start_ns, l.end_ns, l.launch_start_ns
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
), stream_from_here AS (
    PARTITION BY l.process, l.device, l.stream ORDER BY l.start_ns, l.end_ns, l.launch_start_ns
    ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
)
