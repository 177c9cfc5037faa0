"""SQL over the relations of a lake."""
