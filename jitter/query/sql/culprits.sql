-- The culprits, one row each, none for a healthy run. A query of it diagnoses the whole run.
CREATE VIEW culprits AS
SELECT scope,                  -- rank, host, device or ranks
       rank,                   -- the rank with the largest excess
       ranks,                  -- the ranks concerned
       host,                   -- of a finding about a rank or a host; null: another scope, or not recorded
       device,                 -- of a finding about a rank or a device; null: another scope, or not recorded
       cause,                  -- its identifier, see: jitter explain causes
       confidence,             -- high, medium or low
       excess_ns,              -- self time above that of the other ranks, in its steps
       gain_ns,                -- time that the run saves if it alone is fixed
       share_ns,               -- its share of the time that the run saves if all culprits are fixed
       steps,                  -- the steps in which it occurs
       epochs,                 -- of each of these steps; null: the markers state none
       step_pattern,           -- pattern of these steps in words
       first_index,            -- kernels from this index on
       last_index,             -- to this one
       code,                   -- of its first kernel: kernel_index, operator, scope, phase, source_line; null: not recorded
       evidence,               -- sentences with numbers
       file,                   -- the profile to open
       start_ns,               -- where to look in the profile, on the recording's clock
       end_ns                  -- end of that range
FROM culprits_rows
