"""The run as recorded: activities, launch shapes, synchronising calls and times of each step, read from a lake."""
