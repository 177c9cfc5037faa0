"""What the page's figures show, as arrays."""
