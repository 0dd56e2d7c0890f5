"""Scenario files: their sections and what they mean."""
