"""Files for other tools: the talk's CSV, Perfetto."""
