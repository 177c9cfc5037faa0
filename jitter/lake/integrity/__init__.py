"""Whether a lake's files are complete and unchanged."""
