-- Where in launch order each activity belongs (place_ns), of those that start in one stretch of time.
-- Activities without a launching call follow their predecessor on the stream, which may lie in the stretches before
-- (carried); those before any launched one were launched before the capture (null). Where a process recorded no
-- launch at all, their own start places them.
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
