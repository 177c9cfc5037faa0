"""The loss: its split by part and rank, the parts in words, and the share that noise alone causes."""
