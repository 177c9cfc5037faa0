"""All steps of a run: statistics per rank, and which of them stand out."""
