-- Kernels (copies left out) that belong to no step, per process and device.
SELECT l.process,
       l.device,
       count(*) FILTER (WHERE l.place_ns IS NULL)     AS before_capture,  -- launched before it began
       count(*) FILTER (WHERE l.place_ns IS NOT NULL) AS outside_steps
FROM placed l
ASOF LEFT JOIN step_ranges s ON l.process = s.process AND l.place_ns >= s.start_ns
WHERE NOT l.is_memory
  AND (s.step_row IS NULL OR l.place_ns >= s.until_ns)
GROUP BY ALL
