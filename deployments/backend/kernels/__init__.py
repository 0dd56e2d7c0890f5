"""Ways to run one network on a GPU, chosen by measurement."""
