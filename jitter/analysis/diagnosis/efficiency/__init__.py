"""Findings about the efficiency of the whole job, which no comparison of ranks or steps shows."""
