-- Each rank's own time in each operation, waits taken out, beside the baseline. A query of it examines the whole run.
CREATE TABLE self_times (
    epoch          BIGINT,   -- null: the markers state none
    step           BIGINT,   -- number
    rank           BIGINT,   -- the job's global rank
    team           BIGINT,   -- ranks that run the same program have one number
    operation      BIGINT,   -- number in the team's program
    kernel_name    VARCHAR,  -- of the operation
    host_ns        DOUBLE,   -- from the call before on the thread to this one's begin
    call_ns        DOUBLE,   -- in the call
    lead_ns        DOUBLE,   -- from when the GPU had the launch to the call's return
    delay_ns       DOUBLE,   -- from the latest of what the operation waits for to its start
    gpu_ns         DOUBLE,   -- on the GPU, without what it loses beside collectives; 0 of collectives
    usual_host_ns  DOUBLE,   -- the median over the team's ranks in this step; of a team of one rank that over its steps
    usual_call_ns  DOUBLE,   -- likewise
    usual_lead_ns  DOUBLE,   -- likewise
    usual_delay_ns DOUBLE,   -- likewise
    usual_gpu_ns   DOUBLE    -- likewise
)
