"""Summaries that programs and profilers print: MPI time, operators, throughput."""
