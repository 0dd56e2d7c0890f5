"""Routing on arrival: every backend is an instance of one variant, with a bounded buffer."""
