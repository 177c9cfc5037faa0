-- Facts on what limits all ranks alike, whose cost is not known, one row each. A query of it diagnoses the whole run.
CREATE VIEW efficiency AS
SELECT kind,                   -- compute_bound, communication, network or placement
       finding,                -- one sentence
       share                   -- of the steps' time; null: unknown
FROM efficiency_rows
