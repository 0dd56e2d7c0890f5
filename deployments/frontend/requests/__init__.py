"""The request table, its driver and its observers."""
