"""Learns how long before a start a backend has to be told, by application and by node."""
