"""Traces of some requests: their spans, and the file that they go to."""
