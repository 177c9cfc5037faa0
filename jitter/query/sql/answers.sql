-- The diagnosis of each step, one row per step. A query of it diagnoses the whole run.
CREATE VIEW answers AS
SELECT epoch,                  -- null: markers name none
       step,                   -- its number
       step_time_ns,           -- null for the first of a stretch
       loss_ns,                -- what jitter costs: its time less that with every own time at its median
       loss_fraction,          -- of the step's time
       min_rank,               -- the one that waits longest
       max_rank,               -- the one with the most excess on the critical path
       kernel_index,           -- where the max rank left the others
       kernel_name,            -- of that kernel
       start_ns,               -- of the max rank's excess: before its first kernel
       cpu_ns,                 -- of the max rank's excess: between launches
       after_ns,               -- of the max rank's excess: on the host after the last launch of a step
       gpu_ns,                 -- of the max rank's excess: in kernels and copies
       cause                   -- late_start, cpu_launch, gpu_compute, workload_imbalance, gpu_time, communication, none
FROM answers_rows
