-- Labels of a run, such as the commit and the driver's version. Valid in SQLite and PostgreSQL.
CREATE TABLE jitter_labels (
    job TEXT NOT NULL,
    digest TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (job, digest, name)
);
CREATE INDEX jitter_runs_by_time ON jitter_runs (job, added_ns);
