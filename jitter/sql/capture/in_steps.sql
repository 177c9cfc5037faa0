-- Activities of some consecutive steps in launch order; ties, as in one graph launch, by stream, then start.
SELECT s.step_row,            -- position in the process's list of steps
       p.* EXCLUDE (place_ns)
FROM placed p
ASOF JOIN (FROM step_ranges WHERE step_row >= $first AND step_row < $last) s
       ON p.process = s.process AND p.place_ns >= s.start_ns
WHERE (s.until_ns IS NULL OR p.place_ns < s.until_ns)
  AND p.place_ns >= $from
  AND ($until IS NULL OR p.place_ns < $until)
ORDER BY p.process, p.device, s.step_row, p.place_ns, p.stream, p.start_ns, p.end_ns
