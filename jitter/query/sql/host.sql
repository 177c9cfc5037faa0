-- Events on the hosts: synchronising calls and data loading.
CREATE VIEW host AS
SELECT TRY_CAST(regexp_extract(filename, 'rank=(\d+)/[^/]+$', 1) AS INTEGER) AS rank,  -- the job's global rank
       epoch,                  -- null: the markers state none
       step,                   -- null: outside every step
       kind,                   -- sync, data_loading, checkpoint, validation or operation
       name,                   -- of the call or range
       thread,                 -- the operating system's thread id
       start_ns,               -- the rank's own clock
       end_ns                  -- null: the recording ended first
FROM read_parquet(getvariable('host_files'), filename = true, hive_partitioning = false)
