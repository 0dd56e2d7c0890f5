"""Finds a plan for a problem: greedy and local search, exact re-solves, reasons for none."""
