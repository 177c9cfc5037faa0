-- The sources, one row each: a recording of one rank, or a rejected file (rank is null).
CREATE VIEW sources AS
SELECT digest,                 -- names the source
       file,                   -- where the trace lay
       size,                   -- bytes
       format,                 -- the format that it was read as
       profiler_version,       -- as the trace states it
       rank,                   -- null: nothing of it is in the lake
       rank_told_by,           -- evidence for the rank
       host,                   -- null: the trace does not state it
       device,                 -- as the recording numbers it
       pid,                    -- of the recorded process
       clock,                  -- utc or unknown
       utc_offset_ns,          -- added to a time of this source it gives UTC
       main_stream,            -- the stream with the most compute kernels
       has_launches,           -- false: kernels belong to the step in which they start
       steps_from,             -- marker, repetition or whole capture
       kernels,                -- in the recording
       outside_steps,          -- kernels in no step
       before_capture          -- kernels in no step because they were launched before the capture
FROM sources_rows
