-- The sources, one row each: a recording of one rank, or a rejected file (rank is null).
CREATE TABLE sources (
    digest           VARCHAR,  -- names the source
    file             VARCHAR,  -- where the trace lay
    size             BIGINT,   -- bytes
    format           VARCHAR,  -- the format that it was read as
    profiler_version VARCHAR,  -- as the trace states it
    rank             BIGINT,   -- null: nothing of it is in the lake
    rank_told_by     VARCHAR,  -- evidence for the rank
    host             VARCHAR,  -- null: the trace does not state it
    device           BIGINT,   -- as the recording numbers it
    pid              BIGINT,   -- of the recorded process
    clock            VARCHAR,  -- utc or unknown
    utc_offset_ns    BIGINT,   -- added to a time of this source it gives UTC
    main_stream      BIGINT,   -- the stream with the most compute kernels
    has_launches     BOOLEAN,  -- false: kernels belong to the step in which they start
    steps_from       VARCHAR,  -- marker, repetition or whole capture
    kernels          BIGINT,   -- in the recording
    outside_steps    BIGINT,   -- kernels in no step
    before_capture   BIGINT    -- kernels in no step because they were launched before the capture
)
