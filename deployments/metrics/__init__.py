"""Metric families, their samples and how they are shown."""
