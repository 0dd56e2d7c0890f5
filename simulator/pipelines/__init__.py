"""Pipelines in the simulator: queries, other rules to compare with, bounds and draws."""
