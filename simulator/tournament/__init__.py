"""Workloads drawn at random, on which every policy is played and compared."""
