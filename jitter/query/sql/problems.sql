-- Problems found in the sources, one row each.
CREATE VIEW problems AS
SELECT source,                 -- digest of the source, in sources
       file,                   -- where the trace lay
       rank,                   -- null: nothing of it is in the lake
       problem                 -- in words
FROM problems_rows
