"""Calls about shared memory of clients, over gRPC and REST."""
