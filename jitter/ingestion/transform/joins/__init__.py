"""Each GPU activity with the call that launched it, in memory or on disk."""
