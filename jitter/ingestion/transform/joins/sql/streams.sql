-- Kernels of each GPU over the whole capture; its main stream is the one with the most compute kernels.
WITH per_stream AS (
    SELECT process, device, stream, count(*) AS kernels, min(start_ns) AS first_ns, max(end_ns) AS last_ns,
           count(*) FILTER (WHERE NOT is_collective) AS compute_kernels
    FROM typed
    WHERE NOT is_memory
    GROUP BY ALL
)
SELECT process, device,
       sum(kernels)::BIGINT AS kernels,
       sum(compute_kernels)::BIGINT AS compute_kernels,
       CASE WHEN max(compute_kernels) > 0 THEN first(stream ORDER BY compute_kernels DESC, stream) END AS main_stream,
       min(first_ns) AS first_ns,
       max(last_ns) AS last_ns
FROM per_stream
GROUP BY process, device
ORDER BY process, device
