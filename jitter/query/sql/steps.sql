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
       expert_imbalance,       -- time in expert kernels: longest rank / mean of an expert group; null: no such kernels
       expert_rank,            -- the rank of that group with the longest time in them
       expert_wait_ns,         -- how long a rank of that group waits for the longest of each layer, on average
       kernel_index,           -- where the delay of the max rank begins
       kernel_name,            -- of that kernel
       start_ns,               -- of the loss: on the host, before a rank's first kernel; the classes add up to the loss
       launch_ns,              -- of the loss: on the host, between launches
       after_ns,               -- of the loss: on the host, after the last launch of a step
       gpu_ns,                 -- of the loss: in kernels and copies
       transfer_ns,            -- of the loss: in collectives, after the last rank has arrived
       overlap_ns,             -- of the loss: kernels that are slower beside communication
       carried_ns,             -- of the loss: carried over from earlier steps
       unexplained_ns,         -- of the loss: the rest
       cause                   -- its identifier, see: jitter explain causes
FROM steps_rows
