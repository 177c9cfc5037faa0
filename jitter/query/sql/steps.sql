-- The diagnosis of each step, one row per step. A query of it diagnoses the whole run.
CREATE TABLE steps (
    epoch            BIGINT,   -- null: the markers state none
    step             BIGINT,   -- its number
    kind             VARCHAR,  -- train, prefill, decode, …: what most ranks' markers say
    step_time_ns     BIGINT,   -- null for the first of consecutive steps
    loss_ns          BIGINT,   -- its time less the time it would take if every rank ran at the median speed
    loss_fraction    DOUBLE,   -- of the step's time
    min_rank         BIGINT,   -- the rank that waits longest
    max_rank         BIGINT,   -- the rank with the largest share of the loss
    expert_imbalance DOUBLE,   -- time in expert kernels: longest rank / mean of an expert group; null: no such kernels
    expert_rank      BIGINT,   -- the rank of that group with the longest time in them
    expert_wait_ns   BIGINT,   -- how long a rank of that group waits for the longest of each layer, on average
    kernel_index     BIGINT,   -- where the delay of the max rank begins
    kernel_name      VARCHAR,  -- of that kernel
    start_ns         BIGINT,   -- of the loss: on the host, before a rank's first kernel; the classes add up to the loss
    launch_ns        BIGINT,   -- of the loss: on the host, between launches
    after_ns         BIGINT,   -- of the loss: on the host, after the last launch of a step
    gpu_ns           BIGINT,   -- of the loss: in kernels and copies
    transfer_ns      BIGINT,   -- of the loss: in collectives, after the last rank has arrived
    overlap_ns       BIGINT,   -- of the loss: kernels that are slower beside communication
    carried_ns       BIGINT,   -- of the loss: carried over from earlier steps
    unexplained_ns   BIGINT,   -- of the loss: the rest
    cause            VARCHAR   -- its identifier, see: jitter explain causes
)
