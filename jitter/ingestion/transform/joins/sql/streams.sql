-- Compute kernels per stream over the whole capture: the stream with the most is the main one.
SELECT p.process, p.device, p.stream, count(*) AS kernels, min(p.start_ns) AS first_ns, max(p.end_ns) AS last_ns,
       count(*) FILTER (WHERE NOT p.is_collective) AS compute_kernels
FROM typed p
WHERE NOT p.is_memory
GROUP BY ALL
ORDER BY p.process, p.device, compute_kernels DESC, p.stream
