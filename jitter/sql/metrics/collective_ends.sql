-- Where each rank left its collectives, for those that have a place in the kernel index.
SELECT cohort, rank, kernel_index, collective, end_ns, group_ranks, group_size
FROM step_rows
WHERE kind = 'collective' AND kernel_index IS NOT NULL
ORDER BY cohort, kernel_index, rank
