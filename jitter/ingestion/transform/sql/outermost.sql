-- Of calls that share a correlation, as a driver's call inside a runtime's does, the outermost alone; one range.
FROM calls c
WHERE c.correlation >= $from AND c.correlation < $until
QUALIFY row_number() OVER (PARTITION BY c.process, c.correlation ORDER BY c.start_ns, c.end_ns DESC, c.thread, c.name) = 1
