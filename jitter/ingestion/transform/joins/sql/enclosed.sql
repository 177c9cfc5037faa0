-- Launches inside a communication library's call on their thread, with that call's operation.
CREATE TABLE enclosed AS
SELECT c.process, c.correlation, r.operation, r.of_library
FROM calls c
ASOF JOIN collective_calls r
       ON c.process = r.process AND coalesce(c.thread, -1) = coalesce(r.thread, -1) AND c.start_ns >= r.start_ns
WHERE c.start_ns <= r.end_ns
  AND c.correlation IS NOT NULL
