-- The findings over all rungs, one row each, the largest loss first. A query of it diagnoses the whole run.
CREATE VIEW culprits AS
SELECT rung,                   -- of the waterfall, that its loss is part of; null: no rung holds it
       class,                  -- of lost time: start, launch, after, gpu or transfer
       scope,                  -- rank, host, device, ranks, unrecorded or job
       rank,                   -- the rank with the largest excess
       ranks,                  -- the ranks concerned
       host,                   -- of a finding about a rank or a host; null: another scope, or not recorded
       device,                 -- of a finding about a rank or a device; null: another scope, or not recorded
       cause,                  -- its identifier, see: jitter explain causes
       cause_certainty,        -- certain, likely or unknown
       confidence,             -- of the attribution: high, medium or low
       seen,                   -- in how many steps, of how many that were recorded: steps, of
       recurs,                 -- yes, no, together or unknown, see: jitter explain confidence
       loss_ns,                -- its share of the loss of its rung
       fraction,               -- that share of the run's time; null: unknown
       excess_ns,              -- self time above that of the other ranks, in its steps
       gain_ns,                -- time that the run saves if it alone is fixed
       gain_range_ns,          -- the least and the most of it, where host gaps may be waits; null: they differ by little
       steps,                  -- the steps in which it occurs
       epochs,                 -- of each of these steps; null: the markers state none
       step_pattern,           -- pattern of these steps in words
       first_index,            -- kernels from this index on
       last_index,             -- to this one
       code,                   -- of its first kernel: kernel_index, operator, scope, phase, source_line; null: not recorded
       evidence,               -- sentences with numbers
       advice,                 -- what to check, and what to record to know whether it recurs
       file,                   -- the profile to open
       start_ns,               -- where to look in the profile, on the recording's clock
       end_ns                  -- end of that range
FROM culprits_rows
