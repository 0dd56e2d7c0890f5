"""Counters, histograms, logs and the snapshot that others read."""
