-- The first launch on each stream from $from on: activities without a launch before it were launched before it.
SELECT process, device, stream, arg_min(launch_start_ns, (start_ns, end_ns, launch_start_ns)) AS latest_ns
FROM launched
WHERE launch_start_ns IS NOT NULL AND start_ns >= $from
GROUP BY ALL
