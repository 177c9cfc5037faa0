"""Jobs of several process groups and of pipeline stages, on an engine that shares nothing with the simulator."""
