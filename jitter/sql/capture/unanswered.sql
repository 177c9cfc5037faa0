-- Launches without a kernel, per step: the recording lost kernels. Those made while their thread captured a
-- graph run nothing and do not count.
WITH launch AS (
    SELECT c.process, c.thread, c.start_ns
    FROM calls c
    JOIN names n ON c.name = n.name
    WHERE n.is_launch
      AND NOT EXISTS (FROM activities a WHERE a.process = c.process AND a.correlation = c.correlation)
),
edge AS (
    SELECT c.process, c.thread, c.start_ns, n.capture_edge
    FROM calls c
    JOIN names n ON c.name = n.name
    WHERE n.capture_edge IS NOT NULL
)
SELECT l.process, s.step_row, count(*) AS launches
FROM launch l
ASOF LEFT JOIN edge e ON l.process = e.process AND l.thread = e.thread AND l.start_ns >= e.start_ns
ASOF JOIN step_ranges s ON l.process = s.process AND l.start_ns >= s.start_ns
WHERE (e.capture_edge IS NULL OR e.capture_edge = 'end')
  AND (s.until_ns IS NULL OR l.start_ns < s.until_ns)
GROUP BY ALL
