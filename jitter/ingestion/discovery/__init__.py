"""The recordings under given paths: which reader takes a file, and why others are left out."""
