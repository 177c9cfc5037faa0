-- Where each rank's time goes in each step; the parts add up to the step.
CREATE VIEW breakdown AS
SELECT epoch,       -- null: the markers state none
       step,        -- number
       rank,        -- the job's global rank
       step_ns,     -- from its first activity to that of the next step, or to its last end
       compute_ns,  -- kernels without communication at the same time
       hidden_ns,   -- communication at the same time as compute
       exposed_ns,  -- communication alone
       waiting_ns,  -- in a collective for its last rank, without compute
       copies_ns,   -- copies and fills alone
       idle_ns      -- the rest: the GPU waits for its host
FROM breakdown_rows
