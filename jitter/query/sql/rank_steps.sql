-- The recorded steps of each rank, one row per rank and step.
CREATE VIEW rank_steps AS
SELECT epoch,                  -- null: the markers state none
       step,                   -- its number
       rank,                   -- the job's global rank
       source,                 -- digest of the source, in sources
       marker,                 -- its text; null: found by repetition, or the whole capture
       start_ns,               -- the rank's own clock
       end_ns,                 -- null: the range has no end in the trace
       cut,                    -- launches in it have no kernel, or its range has no end
       launches_without_kernel,  -- their kernels are missing in the trace
       kernels,                -- compute and collectives
       memory_activities,      -- copies and fills
       kind,                   -- train, prefill, decode, …: what the marker says that the step does
       requests,               -- in a serving engine's batch; null: not stated
       tokens,                 -- that the step computes; null: not stated
       sequence,               -- equal digests: the same kernels in the same order
       checkpoint_ns,          -- host time in ranges that write the model; null: none recorded
       validation_ns,          -- host time in ranges that evaluate the model; null: none recorded
       checksum,               -- of its parquet file; null: an older version wrote it
       size                    -- of its parquet file, bytes; null: an older version wrote it
FROM rank_steps_rows
