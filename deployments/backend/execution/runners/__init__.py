"""Runners of loaded models, by what a batch of each is made of."""
