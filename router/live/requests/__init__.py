"""Requests and queries of a live router, from their submission to their end."""
