"""Parsers of GPU logs: clocks, power, temperature, driver errors."""
