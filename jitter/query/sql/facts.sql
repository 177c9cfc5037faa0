-- What the logs state that is unusual, one row each. A query of it diagnoses the whole run.
CREATE TABLE facts (
    kind      VARCHAR,    -- network, gpu_clock, gpu_error, placement, profiler, contradiction
    words     VARCHAR,    -- one clause, with the numbers
    causes    VARCHAR[],  -- the causes that it speaks for
    certainty VARCHAR,    -- of such a cause, by this fact alone: certain, likely or unknown
    ranks     BIGINT[],   -- empty: all ranks, or unknown ones
    host      VARCHAR,    -- null: not of one host
    device    BIGINT,     -- number of the GPU; null: not of one GPU
    advice    VARCHAR,    -- what to do
    reason    VARCHAR,    -- the cause in a few words; empty: it is no cause
    finding   BIGINT      -- number of its finding in the list of the report, from 0; null: of no finding
)
