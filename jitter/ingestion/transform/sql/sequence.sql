-- Kernels of one GPU in launch order: of one kind, on one stream ($stream) or on all streams (null).
SELECT p.name,     -- position in names
       p.place_ns  -- ns: its launch, or its own start where the trace has no launches
FROM placed p
JOIN names n ON p.name = n.name
WHERE p.process = $process
  AND p.device IS NOT DISTINCT FROM $device
  AND NOT p.is_memory
  AND p.place_ns IS NOT NULL
  AND n.kind = $kind
  AND ($stream IS NULL OR p.stream = $stream)
ORDER BY p.place_ns, p.stream, p.start_ns, p.end_ns, p.name, p.correlation
