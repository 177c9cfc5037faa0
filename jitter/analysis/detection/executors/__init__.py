"""Per-step computations over the run's steps: here, on threads, or on a Dask cluster."""
