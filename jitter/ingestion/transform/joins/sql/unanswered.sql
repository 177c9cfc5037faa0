-- Launches without a kernel, of one range of correlations: the recording lost the kernel, or the launch was made during
-- a graph capture.
SELECT c.process, c.thread, c.start_ns
FROM calls c
JOIN names n ON c.name = n.name
WHERE n.is_launch
  AND c.correlation >= $from AND c.correlation < $until
  AND NOT EXISTS (
      FROM activities a
      WHERE a.process = c.process AND a.correlation = c.correlation
        AND a.correlation >= $from AND a.correlation < $until
  )
