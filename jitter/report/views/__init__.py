"""The data that the figures of the report draw, as arrays."""
