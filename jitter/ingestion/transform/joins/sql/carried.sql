-- The last launch on each stream before $until: the place of later activities without a launch.
SELECT process, device, stream, arg_max(launch_start_ns, (start_ns, end_ns, launch_start_ns)) AS place_ns
FROM launched
WHERE launch_start_ns IS NOT NULL AND start_ns < $until
GROUP BY ALL
