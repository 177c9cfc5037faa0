-- What limits all ranks alike, one row each. A query of it diagnoses the whole run.
CREATE VIEW efficiency AS
SELECT kind,                   -- compute_bound, communication, synchronization, small_kernels, …
       finding,                -- one sentence
       share,                  -- of the steps' time; null: unknown
       gain_ns,                -- time that the run saves without it, by replay; null: unknown
       evidence                -- sentences with numbers
FROM efficiency_rows
