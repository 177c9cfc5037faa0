-- metrics(step, epoch): one step of the relation metrics.
CREATE MACRO metrics(step_number, epoch_number := NULL) AS TABLE
SELECT * FROM metrics WHERE step = step_number AND (epoch_number IS NULL OR epoch = epoch_number)
