"""Building blocks that know nothing of traces, lakes or analyses."""
