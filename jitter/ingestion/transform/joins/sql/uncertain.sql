-- Activities without a launch whose first and last possible place are not in the same step, per GPU.
WITH step_of AS (
    SELECT p.process, p.device,
           CASE WHEN f.until_ns IS NULL OR p.place_ns < f.until_ns THEN f.step_row END AS first_row,
           CASE WHEN l.until_ns IS NULL OR p.latest_ns < l.until_ns THEN l.step_row END AS last_row
    FROM placed p
    ASOF LEFT JOIN step_ranges f ON p.process = f.process AND p.place_ns >= f.start_ns
    ASOF LEFT JOIN step_ranges l ON p.process = l.process AND p.latest_ns >= l.start_ns
    WHERE p.latest_ns > p.place_ns
)
SELECT process, device, count(*) AS activities
FROM step_of
WHERE first_row IS DISTINCT FROM last_row
GROUP BY ALL
