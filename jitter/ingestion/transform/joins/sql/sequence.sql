-- Kernels of one GPU in launch order: of one kind, on one stream ($stream) or on all streams (null).
SELECT p.name,     -- position in names
       p.place_ns  -- ns: its launch, or its own start where the trace has no launches
FROM typed p
WHERE p.process = $process
  AND p.device IS NOT DISTINCT FROM $device
  AND NOT p.is_memory
  AND p.place_ns IS NOT NULL
  AND p.is_collective = $is_collective
  AND ($stream IS NULL OR p.stream = $stream)
ORDER BY p.place_ns, p.stream, p.start_ns, p.end_ns, p.name, p.correlation
