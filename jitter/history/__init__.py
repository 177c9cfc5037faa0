"""Runs of a job over time, kept in an SQLite file or a PostgreSQL database."""
