-- Activities of every step in launch order; ties, as in one graph launch, by stream, then start.
SELECT s.step_row,            -- position in the process's list of steps
       l.* EXCLUDE (place_ns)
FROM placed l
ASOF JOIN step_ranges s ON l.process = s.process AND l.place_ns >= s.start_ns
WHERE s.until_ns IS NULL OR l.place_ns < s.until_ns
ORDER BY l.process, l.device, s.step_row, l.place_ns, l.stream, l.start_ns, l.end_ns
