-- The metrics of every kernel, rank and step. metrics(2003) reads one step and is much faster; metrics(3, 1) is step 3 of epoch 1.
CREATE TABLE metrics (
    epoch                       BIGINT,   -- null: the markers state none
    step                        BIGINT,   -- its number
    rank                        INTEGER,  -- the job's global rank
    cohort                      INTEGER,  -- which ranks are compared with each other
    kernel_index                INTEGER,  -- null: unmatched
    position                    BIGINT,   -- in the rank's own step, copies and fills left out
    kernel_name                 VARCHAR,  -- demangled
    kind                        VARCHAR,  -- compute or collective
    stream                      BIGINT,   -- stream or queue
    on_main                     BOOLEAN,  -- a compute kernel of the main stream
    start_ns                    BIGINT,   -- the rank's own clock
    end_ns                      BIGINT,   -- the rank's own clock
    launch_start_ns             BIGINT,   -- null: no launch recorded
    duration_ns                 BIGINT,   -- end − start
    gap_ns                      BIGINT,   -- since the kernel before it on the main stream
    ttke_ns                     BIGINT,   -- time to kernel end: sum of gaps and durations so far
    launch_latency_ns           BIGINT,   -- start − launch
    duration_deviation_ns       DOUBLE,   -- from the cohort's mean
    gap_deviation_ns            DOUBLE,   -- from the cohort's mean
    ttke_deviation_ns           DOUBLE,   -- from the cohort's mean
    launch_latency_deviation_ns DOUBLE    -- from the cohort's mean
)
