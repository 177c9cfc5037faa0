-- Numbers in the texts of step markers besides step, epoch and rank, one row each: batch sizes, sequence lengths.
CREATE TABLE marker_numbers (
    epoch    BIGINT,   -- null: the markers state none
    step     BIGINT,   -- number
    rank     BIGINT,   -- the job's global rank
    position BIGINT,   -- which number of the marker, from 0
    name     VARCHAR,  -- the word before it; number_<N> without one
    value    DOUBLE    -- the number
)
