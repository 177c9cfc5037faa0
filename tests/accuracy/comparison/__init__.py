"""How often a comparison of two runs is right: simulated pairs with and without a known change."""
