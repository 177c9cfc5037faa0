-- What waits for what in the program of each team. A query of it examines the whole run.
CREATE TABLE waits (
    team           BIGINT,   -- ranks that run the same program have one number
    operation      BIGINT,   -- that waits: its number in the team's program
    kernel_name    VARCHAR,  -- of the operation
    waits          VARCHAR,  -- gpu: the operation, before its start; host: the host, before the operation's call
    on_operation   BIGINT,   -- whose end is awaited; null: the last one of the step before on a stream
    on_kernel_name VARCHAR,  -- of that operation
    on_stream      BIGINT,   -- number of its stream in the program; 0 is the main stream
    steps_back     BIGINT,   -- how many steps before the operation's it runs
    provenance     VARCHAR,  -- recorded, observed or inferred, see: jitter explain dependencies
    spread_ns      DOUBLE,   -- by how much the distance from the awaited end to the call varies; null: not measured
    gap_spread_ns  DOUBLE    -- by how much the host's time since its call before varies, which the wait explains
)
