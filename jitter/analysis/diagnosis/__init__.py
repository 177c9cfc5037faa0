"""Causes, culprits, the answers and the verdict, as plain data."""
