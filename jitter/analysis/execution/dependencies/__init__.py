"""Dependencies between operations: which wait for which, ready times, launch queue, state carried between steps."""
