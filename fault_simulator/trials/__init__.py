"""Cameras whose frames are mapped, and a version on trial, in the world of simulated faults."""
