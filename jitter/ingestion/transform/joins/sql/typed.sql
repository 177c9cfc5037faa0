-- Placed activities, each with whether it is communication: by its arguments, by the call around its launch, by name.
CREATE VIEW typed AS
SELECT f.* EXCLUDE (operation) REPLACE (CASE WHEN is_collective THEN coalesce(collective, operation) ELSE collective END AS collective)
FROM (
    SELECT p.*,
           e.operation,
           NOT p.is_memory
           AND (
               n.is_collective
               OR p.collective IS NOT NULL
               OR p.group_name IS NOT NULL
               OR p.group_size IS NOT NULL
               OR (e.process IS NOT NULL AND (e.of_library OR n.may_be_in_framework_call))
           ) AS is_collective
    FROM placed p
    JOIN names n ON p.name = n.name
    LEFT JOIN enclosed e ON p.process = e.process AND p.correlation = e.correlation
) f
