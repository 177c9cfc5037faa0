"""The figures of the report, one per module. `build(...)` draws the data it is given and computes nothing."""
