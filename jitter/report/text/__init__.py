"""The findings as sentences and tables, the same in every form of the report."""
