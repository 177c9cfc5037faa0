-- The last launch on each stream up to a moment: what later activities without a launch follow.
SELECT process, device, stream, arg_max(launch_start_ns, (start_ns, end_ns, launch_start_ns)) AS place_ns
FROM launched
WHERE launch_start_ns IS NOT NULL AND start_ns < $until
GROUP BY ALL
