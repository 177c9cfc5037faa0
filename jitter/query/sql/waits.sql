-- What waits for what in the program of each team. A query of it examines the whole run.
CREATE VIEW waits AS
SELECT team,            -- ranks that run the same program have one number
       operation,       -- that waits: its number in the team's program
       kernel_name,     -- of the operation
       waits,           -- gpu: the operation, before its start; host: the host, before the operation's call
       on_operation,    -- whose end is awaited; null: the last one of the step before on a stream
       on_kernel_name,  -- of that operation
       on_stream,       -- number of its stream in the program; 0 is the main stream
       steps_back,      -- how many steps before the operation's it runs
       provenance,      -- recorded, observed or inferred, see: jitter explain dependencies
       spread_ns,       -- by how much the distance from the awaited end to the call varies; null: not measured
       gap_spread_ns    -- by how much the host's time since its call before varies, which the wait explains
FROM waits_rows
