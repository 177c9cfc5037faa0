-- The three metrics and launch latency of one step, in ns, for every rank, with deviations from the cohort's mean
-- (METRICS: duration, gap, time to kernel end, launch latency). Needs step_rows and moments.
WITH ordered AS (
    SELECT r.*,
           -- by start, on that stream: the kernel or collective before
           lag(r.end_ns) OVER (PARTITION BY r.rank, r.stream ORDER BY r.start_ns, r.ordinal) AS previous_end_ns,
           row_number() OVER (PARTITION BY r.rank, r.on_main ORDER BY r.start_ns, r.ordinal) = 1 AND r.on_main AS is_first,
           -- kernels of one graph launch share it: only the first to start has its latency
           row_number() OVER (
               PARTITION BY r.rank, r.launch_thread, r.launch_start_ns ORDER BY r.start_ns, r.ordinal
           ) = 1 AS has_launch
    FROM step_rows r
),
first AS (
    SELECT o.rank, o.cohort, m.moment_ns - o.start_ns AS until_moment_ns  -- X(r)
    FROM ordered o
    LEFT JOIN moments m ON o.rank = m.rank
    WHERE o.is_first
),
first_gap AS (
    SELECT rank, max(until_moment_ns) OVER (PARTITION BY cohort) - until_moment_ns AS gap_ns FROM first
),
with_gap AS (
    SELECT o.*,
           CASE WHEN NOT o.on_main THEN 0
                WHEN o.is_first THEN g.gap_ns
                ELSE o.start_ns - o.previous_end_ns
           END AS gap_ns,
           CASE WHEN o.has_launch THEN o.start_ns - o.launch_start_ns END AS launch_latency_ns
    FROM ordered o
    LEFT JOIN first_gap g ON o.rank = g.rank
),
with_ttke AS (
    SELECT w.*,
           CASE WHEN count(*) FILTER (WHERE w.gap_ns IS NULL) OVER so_far = 0
                THEN CAST(coalesce(sum(w.gap_ns + w.duration_ns) FILTER (WHERE w.on_main) OVER so_far, 0) AS BIGINT)
           END AS ttke_ns
    FROM with_gap w
    WINDOW so_far AS (PARTITION BY w.rank ORDER BY w.position)
)
SELECT t.rank,
       t.cohort,
       t.kernel_index,       -- null: unmatched
       t.position,           -- in the rank's own step
       t.kernel_name,
       t.kind,
       t.stream,
       t.on_main,            -- a compute kernel of the main stream: its gap and duration count
       t.start_ns,           -- the rank's own clock
       t.end_ns,
       t.launch_start_ns,
       t.message_bytes,      -- of collectives, where recorded
       t.duration_ns,
       t.gap_ns,
       t.ttke_ns,
       t.launch_latency_ns,
       CASE WHEN t.kernel_index IS NOT NULL THEN t.duration_ns - avg(t.duration_ns) OVER peers END AS duration_deviation_ns,
       CASE WHEN t.kernel_index IS NOT NULL THEN t.gap_ns - avg(t.gap_ns) OVER peers END AS gap_deviation_ns,
       CASE WHEN t.kernel_index IS NOT NULL THEN t.ttke_ns - avg(t.ttke_ns) OVER peers END AS ttke_deviation_ns,
       CASE WHEN t.kernel_index IS NOT NULL THEN t.launch_latency_ns - avg(t.launch_latency_ns) OVER peers END AS launch_latency_deviation_ns
FROM with_ttke t
WINDOW peers AS (PARTITION BY t.cohort, t.kernel_index)
ORDER BY t.cohort, t.rank, t.position
