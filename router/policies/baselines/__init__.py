"""Policies that exist for comparison."""
