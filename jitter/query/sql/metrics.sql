-- The metrics of every kernel, rank and step. metrics(2003) reads one step and is much faster; metrics(3, 1) is step 3 of epoch 1.
CREATE VIEW metrics AS
SELECT epoch,                  -- null: the markers state none
       step,                   -- its number
       rank,                   -- the job's global rank
       cohort,                 -- which ranks are compared with each other
       kernel_index,           -- null: unmatched
       position,               -- in the rank's own step, copies and fills left out
       kernel_name,            -- demangled
       kind,                   -- compute or collective
       stream,                 -- stream or queue
       on_main,                -- a compute kernel of the main stream
       start_ns,               -- the rank's own clock
       end_ns,                 -- the rank's own clock
       launch_start_ns,        -- null: no launch recorded
       duration_ns,            -- end − start
       gap_ns,                 -- since the kernel before it on the main stream
       ttke_ns,                -- time to kernel end: sum of gaps and durations so far
       launch_latency_ns,      -- start − launch
       duration_deviation_ns,  -- from the cohort's mean
       gap_deviation_ns,       -- from the cohort's mean
       ttke_deviation_ns,      -- from the cohort's mean
       launch_latency_deviation_ns  -- from the cohort's mean
FROM metrics_rows
