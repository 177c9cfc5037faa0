-- One step's kernels of all ranks (copies and fills left out), with their place in the cohort's kernel index.
CREATE OR REPLACE TEMP TABLE step_rows AS
WITH positioned AS (
    SELECT r.rank, r.ordinal, r.kernel_name, r.kind, r.stream, r.start_ns, r.end_ns, r.duration_ns,
           r.launch_start_ns, r.launch_end_ns, r.launch_thread,
           r.grid_x, r.grid_y, r.grid_z, r.block_x, r.block_y, r.block_z,
           r.collective, r.group_ranks, r.group_size, r.message_bytes,
           row_number() OVER (PARTITION BY r.rank ORDER BY r.ordinal) - 1 AS position
    FROM read_parquet($files, hive_partitioning = false) r
    WHERE r.kind <> 'memory'
)
SELECT p.*,
       m.cohort,                                               -- which ranks are compared with each other
       i.kernel_index,                                         -- null: no partner in the reference
       p.kind = 'compute' AND coalesce(p.stream = m.main_stream, false) AS on_main
FROM positioned p
JOIN members m ON p.rank = m.rank
LEFT JOIN indices i ON i.cohort = m.cohort AND i.sequence = m.sequence AND i.position = p.position
