"""Slow communication, and communication that nothing names so."""
