"""Building the wheel: machine code of the compiled loops goes into it, so that no first report waits for a compiler."""
