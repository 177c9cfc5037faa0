"""Readers of AMD's profilers: rocprofv3, rocpd, rocprof v1 and v2, RPD."""
