-- What the logs state that is unusual, one row each. A query of it diagnoses the whole run.
CREATE VIEW facts AS
SELECT kind,                   -- network, gpu_clock, gpu_error, placement, profiler, contradiction
       words,                  -- one clause, with the numbers
       causes,                 -- the causes that it speaks for
       certainty,              -- of such a cause, by this fact alone: certain, likely or unknown
       ranks,                  -- empty: all ranks, or unknown ones
       host,                   -- null: not of one host
       device,                 -- number of the GPU; null: not of one GPU
       advice,                 -- what to do
       reason,                 -- the cause in a few words; empty: it is no cause
       finding                 -- number of its finding in the list of the report, from 0; null: of no finding
FROM facts_rows
