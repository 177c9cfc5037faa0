-- The culprits, one row each, none for a healthy run. A query of it diagnoses the whole run.
CREATE VIEW culprits AS
SELECT scope,                  -- rank, host, device or ranks
       rank,                   -- the worst of ranks
       ranks,                  -- all of them
       host,                   -- null: no host's own matter, or not recorded
       device,                 -- null: no device's own matter
       cause,                  -- late_start, cpu_launch, gpu_compute, workload_imbalance, gpu_time or communication
       confidence,             -- high, medium or low
       excess_ns,              -- own time above the others', in its steps
       gain_ns,                -- what the run gains if it alone is repaired
       share_ns,               -- its share of what the run gains if all culprits are repaired
       steps,                  -- in which it happens
       epochs,                 -- of each of these steps; null: markers name none
       step_pattern,           -- in words
       first_index,            -- kernels from this index on
       last_index,             -- to this one
       code,                   -- of its first kernel: kernel_index, operator, scope, phase, source_line; null: not recorded
       evidence,               -- in words, with the numbers
       file,                   -- the profile to open
       start_ns,               -- where in it, on its own clock
       end_ns                  -- to here
FROM culprits_rows
