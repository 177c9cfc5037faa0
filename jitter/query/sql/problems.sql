-- Problems found in the sources and logs, one row each; also collectives whose sizes in log and trace differ.
CREATE VIEW problems AS
SELECT source,                 -- digest of the source, in sources, or of the log
       file,                   -- where the trace or log lay
       rank,                   -- null: a log, or nothing of it is in the lake
       problem                 -- one sentence
FROM problems_rows
