"""Collectives: members matched across ranks, whether they leave together, and the order to compute them in."""
