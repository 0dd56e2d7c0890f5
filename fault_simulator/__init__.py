"""Production processes in one simulated world, and whatever can happen to them."""
