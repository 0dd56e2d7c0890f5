"""Sequences of requests that share a state: their order, and the place of the state."""
