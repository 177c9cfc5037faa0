"""Readers of rocprofv3's CSV and JSON output."""
