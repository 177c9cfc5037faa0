"""Metrics of collectives: bandwidth, waiting ranks, and the share that compute hid."""
