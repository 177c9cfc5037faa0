-- Where each rank's time goes in each step; the parts add up to the step.
CREATE TABLE breakdown (
    epoch      BIGINT,   -- null: the markers state none
    step       BIGINT,   -- number
    rank       INTEGER,  -- the job's global rank
    step_ns    BIGINT,   -- from its first activity to that of the next step, or to its last end
    compute_ns BIGINT,   -- kernels without communication at the same time
    hidden_ns  BIGINT,   -- communication at the same time as compute
    exposed_ns BIGINT,   -- communication alone
    waiting_ns BIGINT,   -- in a collective for its last rank, without compute
    copies_ns  BIGINT,   -- copies and fills alone
    idle_ns    BIGINT    -- the rest: the GPU waits for its host
)
