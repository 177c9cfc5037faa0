-- The diagnosis of each step, one row per step. A query of it diagnoses the whole run.
CREATE VIEW steps AS
SELECT epoch,                  -- null: the markers state none
       step,                   -- its number
       kind,                   -- train, prefill, decode, …: what most ranks' markers say
       step_time_ns,           -- null for the first of consecutive steps
       loss_ns,                -- its time less the time it would take if every rank ran at the median speed
       loss_fraction,          -- of the step's time
       min_rank,               -- the rank that waits longest
       max_rank,               -- the rank with the largest share of the loss
       kernel_index,           -- where the delay of the max rank begins
       kernel_name,            -- of that kernel
       start_ns,               -- of the max rank's share: before its first kernel
       cpu_ns,                 -- of the max rank's share: between launches
       after_ns,               -- of the max rank's share: on the host after the last launch of a step
       gpu_ns,                 -- of the max rank's share: in kernels and copies
       cause                   -- its identifier, see: jitter explain causes
FROM steps_rows
