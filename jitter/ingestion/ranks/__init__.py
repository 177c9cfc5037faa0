"""The rank of each recording, and the job that it belongs to."""
