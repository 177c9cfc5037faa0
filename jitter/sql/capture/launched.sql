-- Each activity with the call that launched it: the outermost of its correlation, within its process.
CREATE TEMP TABLE launched AS
WITH call AS (
    SELECT process, correlation,
           arg_min(name, start_ns)   AS launch_name,
           min(start_ns)             AS launch_start_ns,
           arg_min(end_ns, start_ns) AS launch_end_ns,
           arg_min(thread, start_ns) AS launch_thread
    FROM calls
    WHERE correlation IS NOT NULL
    GROUP BY process, correlation
)
SELECT a.*,
       c.launch_name,       -- position in names; null: no call recorded
       c.launch_start_ns,   -- ns, the recording's clock
       c.launch_end_ns,     -- ns
       c.launch_thread,     -- operating system's thread id
       c.launch_start_ns AS place_ns  -- where in launch order it belongs; null: before the capture
FROM activities a
LEFT JOIN call c ON a.process = c.process AND a.correlation = c.correlation
