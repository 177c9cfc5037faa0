"""What a GPU's driver and its tools log: clocks, power, temperature, errors."""
