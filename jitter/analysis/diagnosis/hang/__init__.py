"""A hang: which operation the job waits in, which ranks did not enter it, and whether the ranks' operations differ."""
