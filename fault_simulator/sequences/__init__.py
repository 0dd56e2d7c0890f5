"""Sequences of requests with a state, in the fault simulation: a model of steps, and its load."""
