-- Numbers in the texts of step markers besides step, epoch and rank, one row each: batch sizes, sequence lengths.
CREATE VIEW marker_numbers AS
SELECT epoch,     -- null: the markers state none
       step,      -- number
       rank,      -- the job's global rank
       position,  -- which number of the marker, from 0
       name,      -- the word before it; number_<N> without one
       value      -- the number
FROM marker_numbers_rows
