"""One step: kernel index, duration, gap, time to kernel end and their deviations."""
