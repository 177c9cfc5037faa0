-- Each rank in each of its collectives: how long it waits for the last one. A query of it examines the whole run.
CREATE TABLE collective_calls (
    epoch             BIGINT,   -- null: the markers state none
    step              BIGINT,   -- number
    collective        BIGINT,   -- its number in the job's program
    "group"           BIGINT,   -- number of the process group among those of the collective
    rank              BIGINT,   -- the job's global rank
    team              BIGINT,   -- ranks that run the same program have one number
    operation         BIGINT,   -- number in the team's program
    kernel_name       VARCHAR,  -- of the operation
    waited_ns         DOUBLE,   -- from the rank's arrival to the last one's
    transfer_ns       DOUBLE,   -- from the last arrival to the end
    usual_transfer_ns DOUBLE    -- the baseline of that; null: unknown
)
