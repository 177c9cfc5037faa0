-- The ranks that have steps, one row each; where a rank has several sources, the values of the last.
CREATE VIEW ranks AS
SELECT rank,                   -- the job's global rank
       host,                   -- null: the trace does not state it
       device,                 -- as the recording numbers it
       main_stream,            -- the stream with the most compute kernels
       format,                 -- the format that it was read as
       steps                   -- number of its steps
FROM ranks_rows
