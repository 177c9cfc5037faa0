-- The recorded steps of each rank, one row per rank and step.
CREATE TABLE rank_steps (
    epoch                   BIGINT,   -- null: the markers state none
    step                    BIGINT,   -- its number
    rank                    BIGINT,   -- the job's global rank
    source                  VARCHAR,  -- digest of the source, in sources
    marker                  VARCHAR,  -- its text; null: found by repetition, or the whole capture
    start_ns                BIGINT,   -- the rank's own clock
    end_ns                  BIGINT,   -- null: the range has no end in the trace
    cut                     BOOLEAN,  -- launches in it have no kernel, or its range has no end
    launches_without_kernel BIGINT,   -- their kernels are missing in the trace
    kernels                 BIGINT,   -- compute and collectives
    memory_activities       BIGINT,   -- copies and fills
    kind                    VARCHAR,  -- train, prefill, decode, …: what the marker says that the step does
    requests                BIGINT,   -- in a serving engine's batch; null: not stated
    tokens                  BIGINT,   -- that the step computes; null: not stated
    sequence                VARCHAR,  -- equal digests: the same kernels in the same order
    checkpoint_ns           BIGINT,   -- host time in ranges that write the model; null: none recorded
    validation_ns           BIGINT,   -- host time in ranges that evaluate the model; null: none recorded
    checksum                VARCHAR,  -- of its parquet file; null: an older version wrote it
    size                    BIGINT    -- of its parquet file, bytes; null: an older version wrote it
)
