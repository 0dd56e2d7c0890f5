"""Matching bids of sources to backends: lanes, standings, and the rank that grants."""
