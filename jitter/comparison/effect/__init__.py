"""The size of a difference between runs, and what of it is noise."""
