-- Where each rank's first main-stream compute kernel starts, in ns on its own clock.
SELECT rank, min(start_ns) AS start_ns FROM step_rows WHERE on_main GROUP BY rank
