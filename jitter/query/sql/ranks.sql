-- The ranks that have steps, one row each; of several sources, the values of the last.
CREATE VIEW ranks AS
SELECT rank,                   -- the job's global rank
       host,                   -- null: the trace does not name it
       device,                 -- as the recording numbers it
       main_stream,            -- the stream with the most compute kernels
       format,                 -- the reader that took it
       steps                   -- how many it has
FROM ranks_rows
