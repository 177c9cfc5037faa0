"""The report's figures, one a file. Nothing is computed here: `build(...)` draws what it is given."""
