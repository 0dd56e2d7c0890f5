"""Pipelines under simulated faults: their stages, and clients that send queries."""
