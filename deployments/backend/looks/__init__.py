"""Looks that a backend takes at inputs for frontends."""
