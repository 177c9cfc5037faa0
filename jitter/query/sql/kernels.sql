-- Every GPU activity of every rank and step, copies and fills included. Times are on the rank's own clock.
CREATE VIEW kernels AS
SELECT TRY_CAST(regexp_extract(filename, 'epoch=(\d+)/step=\d+/[^/]+$', 1) AS BIGINT) AS epoch,  -- null: the markers state none
       TRY_CAST(regexp_extract(filename, 'step=(\d+)/[^/]+$', 1) AS BIGINT) AS step,  -- a filter on it opens that step's files only
       rank,                   -- the job's global rank
       ordinal,                -- launch order in the rank's step, from 0
       kernel_name,            -- demangled
       kind,                   -- compute, collective or memory
       device,                 -- as the recording numbers it
       stream,                 -- stream or queue
       start_ns,               -- on the GPU
       end_ns,                 -- on the GPU
       end_ns - start_ns AS duration_ns,  -- end − start
       launch_name,            -- the call that launched it
       launch_start_ns,        -- null: no launch recorded
       launch_end_ns,          -- when the launching call returned
       launch_thread,          -- the operating system's thread id
       correlation_id,         -- joins kernel and launch in the trace
       grid_x,                 -- blocks
       grid_y,                 -- blocks
       grid_z,                 -- blocks
       block_x,                -- threads
       block_y,                -- threads
       block_z,                -- threads
       collective,             -- the operation: all_reduce, all_gather, …
       message_bytes,          -- of a collective
       dtype,                  -- of a collective
       group_name,             -- the communicator or process group
       group_ranks,            -- ranks that take part
       group_size,             -- number of ranks that take part
       sequence,               -- number of the collective in its group
       source_rank,            -- rank that sends, of a send or a receive
       destination_rank,       -- rank that receives
       size_bytes,             -- of a collective as nccl-tests states it, of a copy or a fill; null: not recorded
       split_imbalance,        -- largest / mean part of an all-to-all with unequal parts
       copy_direction,         -- of a copy: host_to_device, device_to_host, …
       operator,               -- the framework's operator that launched it; null: not recorded
       scope,                  -- annotations and modules around the launch, outermost first, with / between them
       phase,                  -- forward, backward, optimizer or communication; null: not recorded
       source_line             -- innermost frame of the program in the Python stack: file(line): function
FROM read_parquet(getvariable('kernels_files'), filename = true, hive_partitioning = false, union_by_name = getvariable('kernels_union'))
