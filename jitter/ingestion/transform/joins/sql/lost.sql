-- Launches without a kernel, per step. Launches during a graph capture of their thread run nothing and do not count.
WITH edge AS (
    SELECT c.process, c.thread, c.start_ns, n.capture_edge
    FROM calls c
    JOIN names n ON c.name = n.name
    WHERE n.capture_edge IS NOT NULL
)
SELECT u.process, s.step_row, count(*) AS launches
FROM unanswered u
ASOF LEFT JOIN edge e ON u.process = e.process AND u.thread = e.thread AND u.start_ns >= e.start_ns
ASOF JOIN step_ranges s ON u.process = s.process AND u.start_ns >= s.start_ns
WHERE (e.capture_edge IS NULL OR e.capture_edge = 'end')
  AND (s.until_ns IS NULL OR u.start_ns < s.until_ns)
GROUP BY ALL
