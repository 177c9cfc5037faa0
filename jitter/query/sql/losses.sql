-- The account of lost time: every share of every step's loss once; they add up to it. A query diagnoses the whole run.
CREATE VIEW losses AS
SELECT epoch,         -- null: the markers state none
       step,          -- that ends later for it
       kind,          -- of the step: train, prefill, decode, …
       origin_epoch,  -- of the step in which the time was lost
       origin_step,   -- the step itself, or the one before it
       rung,          -- of the waterfall: ranks
       rank,          -- whose time; null: a transfer
       host,          -- of the rank
       device,        -- of the rank
       team,          -- ranks that run the same program have one number
       collective,    -- of a transfer: its number in the job's program
       ranks,         -- of a transfer: the ranks of its group
       class,         -- start, launch, after, gpu, transfer, overlap, carried or unexplained, see: jitter explain account
       operation,     -- number in the team's program; null: shares below 1 us of a rank and class, together
       kernel_index,  -- of the operation in its step; null: it is no kernel, or has no index
       kernel_name,   -- of the operation
       phase,         -- of the operation: forward, backward, optimizer or communication; null: not recorded
       loss_ns,       -- its share of the step's loss
       excess_ns      -- own time above the baseline, also where the step ends no later for it
FROM losses_rows
