"""Parsers of CPU and GPU bindings of ranks, and of host topology."""
