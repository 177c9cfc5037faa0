"""The run computed again with other times, and the critical path through it."""
