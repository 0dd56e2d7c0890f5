"""Figures, plots and records of a run."""
