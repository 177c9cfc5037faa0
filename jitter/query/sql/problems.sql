-- Problems found in the sources and logs, one row each; also collectives whose sizes in log and trace differ.
CREATE TABLE problems (
    source  VARCHAR,  -- digest of the source, in sources, or of the log
    file    VARCHAR,  -- where the trace or log lay
    rank    BIGINT,   -- null: a log, or nothing of it is in the lake
    problem VARCHAR   -- one sentence
)
