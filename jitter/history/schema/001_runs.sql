-- One row per run of a job. Valid in SQLite and PostgreSQL.
CREATE TABLE jitter_runs (
    job TEXT NOT NULL,               -- name that the user gives: runs of one job are compared
    digest TEXT NOT NULL,            -- of the recordings and steps: the same run is added once
    name TEXT NOT NULL,              -- the run's label
    added_ns BIGINT NOT NULL,        -- when it was added, ns since 1970: the order of the runs
    ranks INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    step_time_ns BIGINT,             -- median; null where unknown
    loss_fraction DOUBLE PRECISION,  -- of the run's time; null where unknown
    document TEXT NOT NULL,          -- the baseline document, JSON
    PRIMARY KEY (job, digest)
);
