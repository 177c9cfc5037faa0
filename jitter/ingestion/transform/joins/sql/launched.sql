-- Each activity with the call that launched it, joined within its process by correlation; one range of correlations.
SELECT a.*,
       c.name     AS launch_name,      -- position in names; null: no call recorded
       c.start_ns AS launch_start_ns,  -- ns, the recording's clock
       c.end_ns   AS launch_end_ns,    -- ns
       c.thread   AS launch_thread     -- operating system's thread id
FROM activities a
LEFT JOIN calls c
       ON a.process = c.process AND a.correlation = c.correlation
      AND c.correlation >= $from AND c.correlation < $until
WHERE a.correlation >= $from AND a.correlation < $until
