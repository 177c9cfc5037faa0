-- Compute kernels per stream over the whole capture: the stream with the most is the main one.
SELECT a.process, a.device, a.stream, count(*) AS kernels, min(a.start_ns) AS first_ns, max(a.end_ns) AS last_ns,
       count(*) FILTER (WHERE n.kind = 'compute') AS compute_kernels
FROM activities a
JOIN names n ON a.name = n.name
WHERE NOT a.is_memory
GROUP BY ALL
ORDER BY a.process, a.device, compute_kernels DESC, a.stream
