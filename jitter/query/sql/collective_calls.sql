-- Each rank in each of its collectives: how long it waits for the last one. A query of it examines the whole run.
CREATE VIEW collective_calls AS
SELECT epoch,             -- null: the markers state none
       step,              -- number
       collective,        -- its number in the job's program
       "group",           -- number of the process group among those of the collective
       rank,              -- the job's global rank
       team,              -- ranks that run the same program have one number
       operation,         -- number in the team's program
       kernel_name,       -- of the operation
       waited_ns,         -- from the rank's arrival to the last one's
       transfer_ns,       -- from the last arrival to the end
       usual_transfer_ns  -- the baseline of that; null: unknown
FROM collective_calls_rows
