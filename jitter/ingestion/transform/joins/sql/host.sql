-- Synchronising calls, long calls and ranges of the host, with the step in which they start.
WITH happened AS (
    SELECT c.process, 'sync' AS kind, n.text AS name, c.thread, c.start_ns, c.end_ns
    FROM calls c
    JOIN names n ON c.name = n.name
    WHERE n.is_synchronising
    UNION ALL
    SELECT c.process, 'operation', n.text, c.thread, c.start_ns, c.end_ns
    FROM calls c
    JOIN names n ON c.name = n.name
    WHERE n.is_operation AND c.end_ns - c.start_ns >= $long_ns
    UNION ALL
    SELECT process, kind, text, thread, start_ns, end_ns FROM host_ranges
)
SELECT h.process,
       CASE WHEN s.until_ns IS NULL OR h.start_ns < s.until_ns THEN s.step_row END AS step_row,
       h.* EXCLUDE (process)
FROM happened h
ASOF LEFT JOIN step_ranges s ON h.process = s.process AND h.start_ns >= s.start_ns
ORDER BY h.process, h.start_ns, h.thread, h.name, h.end_ns, h.kind
