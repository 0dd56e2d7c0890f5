"""Hang detection, quarantine and availability."""
