"""From a reader's batches to the rows of a lake."""
