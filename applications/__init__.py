"""Applications as serving files and scenarios declare them."""
