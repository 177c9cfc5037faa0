-- The ranks that a recording or a log names, one row each; where a rank has several recordings, the values of the last.
CREATE TABLE ranks (
    rank        BIGINT,    -- the job's global rank
    host        VARCHAR,   -- null: no source states it, or two state it differently
    device      BIGINT,    -- the GPU's number as the recording, else NCCL, counts
    bus_id      VARCHAR,   -- PCI address of the GPU, domain:bus:device; null as for the host
    process     BIGINT,    -- its number on the host
    numa        BIGINT,    -- NUMA node of the GPU, by a log of the topology
    main_stream BIGINT,    -- the stream with the most compute kernels
    format      VARCHAR,   -- the format that it was read as; null: no recording
    steps       BIGINT,    -- number of its steps
    host_from   VARCHAR,   -- what states the host: recording, NCCL, NCCL RAS, CPU binding, MPI
    device_from VARCHAR,   -- what states the device
    bus_id_from VARCHAR,   -- what states the PCI address; device number: a log names both for one GPU
    conflicts   VARCHAR[]  -- what sources state differently
)
