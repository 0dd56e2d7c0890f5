"""Hostile bytes for everything that reads what strangers send."""
