"""Faults of a run: their kinds, the lasting ones, and when each comes."""
