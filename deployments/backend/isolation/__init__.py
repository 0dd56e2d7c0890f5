"""Models in processes with environments of their own."""
