"""Work on several processors: processes, Dask, read-ahead."""
