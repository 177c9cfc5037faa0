-- The account of lost time: every share of every step's loss once; they add up to it. A query diagnoses the whole run.
CREATE TABLE losses (
    epoch        BIGINT,    -- null: the markers state none
    step         BIGINT,    -- that ends later for it
    kind         VARCHAR,   -- of the step: train, prefill, decode, …
    origin_epoch BIGINT,    -- of the step in which the time was lost
    origin_step  BIGINT,    -- the step itself, or the one before it
    rung         VARCHAR,   -- of the waterfall: ranks
    rank         BIGINT,    -- whose time; null: a transfer
    host         VARCHAR,   -- of the rank
    device       BIGINT,    -- of the rank
    team         BIGINT,    -- ranks that run the same program have one number
    collective   BIGINT,    -- of a transfer: its number in the job's program
    ranks        BIGINT[],  -- of a transfer: the ranks of its group
    class        VARCHAR,   -- start, launch, after, gpu, transfer, overlap, carried or unexplained, see: jitter explain account
    operation    BIGINT,    -- number in the team's program; null: shares below 1 us of a rank and class, together
    kernel_index BIGINT,    -- of the operation in its step; null: it is no kernel, or has no index
    kernel_name  VARCHAR,   -- of the operation
    phase        VARCHAR,   -- of the operation: forward, backward, optimizer or communication; null: not recorded
    loss_ns      DOUBLE,    -- its share of the step's loss
    excess_ns    DOUBLE     -- own time above the baseline, also where the step ends no later for it
)
