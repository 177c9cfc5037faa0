"""Numbers: typed arrays, compiled loops, selection, robust statistics."""
