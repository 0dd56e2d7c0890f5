"""One script a claim; each prints the figures that the README quotes."""
