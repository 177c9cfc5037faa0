-- The findings over all rungs, one row each, the largest loss first. A query of it diagnoses the whole run.
CREATE TABLE culprits (
    rung            VARCHAR,      -- of the waterfall, that its loss is part of; null: no rung holds it
    class           VARCHAR,      -- of lost time: start, launch, after, gpu or transfer
    scope           VARCHAR,      -- rank, host, device, ranks, unrecorded or job
    rank            BIGINT,       -- the rank with the largest excess
    ranks           BIGINT[],     -- the ranks concerned
    host            VARCHAR,      -- of a finding about a rank or a host; null: another scope, or not recorded
    device          BIGINT,       -- of a finding about a rank or a device; null: another scope, or not recorded
    bus_id          VARCHAR,      -- of a finding about a rank: the PCI address of its GPU, domain:bus:device
    cause           VARCHAR,      -- its identifier, see: jitter explain causes
    cause_certainty VARCHAR,      -- certain, likely or unknown
    confidence      VARCHAR,      -- of the attribution: high, medium or low
    seen            STRUCT("steps" BIGINT, "of" BIGINT),  -- in how many steps, of how many that were recorded: steps, of
    recurs          VARCHAR,      -- yes, no, together or unknown, see: jitter explain confidence
    loss_ns         BIGINT,       -- its share of the loss of its rung
    fraction        DOUBLE,       -- that share of the run's time; null: unknown
    excess_ns       BIGINT,       -- self time above that of the other ranks, in its steps
    gain_ns         BIGINT,       -- time that the run saves if it alone is fixed
    gain_with_hidden_ns BIGINT,   -- time that fixing it and the findings that hide it saves; NULL where none does
    gain_range_ns   BIGINT[],     -- the least and the most of it, where host gaps may be waits; null: they differ by little
    steps           BIGINT[],     -- the steps in which it occurs
    epochs          BIGINT[],     -- of each of these steps; null: the markers state none
    step_pattern    VARCHAR,      -- pattern of these steps in words
    first_index     BIGINT,       -- kernels from this index on
    last_index      BIGINT,       -- to this one
    code            STRUCT("kernel_index" BIGINT, "operator" VARCHAR, "scope" VARCHAR, "phase" VARCHAR, "source_line" VARCHAR),  -- of its first kernel: kernel_index, operator, scope, phase, source_line; null: not recorded
    evidence        VARCHAR[],    -- sentences with numbers
    advice          VARCHAR,      -- what to check, and what to record to know whether it recurs
    file            VARCHAR,      -- the profile to open
    start_ns        BIGINT,       -- where to look in the profile, on the recording's clock
    end_ns          BIGINT        -- end of that range
)
