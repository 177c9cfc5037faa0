"""Files for other tools: CSV, Perfetto."""
