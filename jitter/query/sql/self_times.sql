-- Each rank's own time in each operation, waits taken out, beside the baseline. A query of it examines the whole run.
CREATE VIEW self_times AS
SELECT epoch,           -- null: the markers state none
       step,            -- number
       rank,            -- the job's global rank
       team,            -- ranks that run the same program have one number
       operation,       -- number in the team's program
       kernel_name,     -- of the operation
       host_ns,         -- from the call before on the thread to this one's begin
       call_ns,         -- in the call
       lead_ns,         -- from when the GPU had the launch to the call's return
       delay_ns,        -- from the latest of what the operation waits for to its start
       gpu_ns,          -- on the GPU, without what it loses beside collectives; 0 of collectives
       usual_host_ns,   -- the median over the team's ranks in this step; of a team of one rank that over its steps
       usual_call_ns,   -- likewise
       usual_lead_ns,   -- likewise
       usual_delay_ns,  -- likewise
       usual_gpu_ns     -- likewise
FROM self_times_rows
