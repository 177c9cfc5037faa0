-- Activities launched in [$from, $until) in launch order; ties, as in one graph launch, by stream, then start.
FROM typed
WHERE place_ns >= $from
  AND ($until IS NULL OR place_ns < $until)
ORDER BY process, device, place_ns, stream, start_ns, end_ns, name, correlation
