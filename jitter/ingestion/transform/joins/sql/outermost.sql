-- The outermost of the calls that share a correlation, as a driver call inside a runtime call does; one range.
FROM calls c
WHERE c.correlation >= $from AND c.correlation < $until
QUALIFY row_number() OVER (PARTITION BY c.process, c.correlation ORDER BY c.start_ns, c.end_ns DESC, c.thread, c.name) = 1
