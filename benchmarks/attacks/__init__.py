"""Attacks on a running server: standalone, bounded, and on the loopback network alone."""
