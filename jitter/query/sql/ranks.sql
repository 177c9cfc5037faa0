-- The ranks that a recording or a log names, one row each; where a rank has several recordings, the values of the last.
CREATE VIEW ranks AS
SELECT rank,                   -- the job's global rank
       host,                   -- null: no source states it, or two state it differently
       device,                 -- the GPU's number as the recording, else NCCL, counts
       bus_id,                 -- PCI address of the GPU, domain:bus:device; null as for the host
       process,                -- its number on the host
       numa,                   -- NUMA node of the GPU, by a log of the topology
       main_stream,            -- the stream with the most compute kernels
       format,                 -- the format that it was read as; null: no recording
       steps,                  -- number of its steps
       host_from,              -- what states the host: recording, NCCL, NCCL RAS, CPU binding, MPI
       device_from,            -- what states the device
       bus_id_from,            -- what states the PCI address; device number: a log names both for one GPU
       conflicts               -- what sources state differently
FROM ranks_rows
