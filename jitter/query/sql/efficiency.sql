-- Facts on what limits all ranks alike, whose cost is not known, one row each. A query of it diagnoses the whole run.
CREATE TABLE efficiency (
    kind    VARCHAR,  -- compute_bound, communication, network or placement
    finding VARCHAR,  -- one sentence
    share   DOUBLE    -- of the steps' time; null: unknown
)
