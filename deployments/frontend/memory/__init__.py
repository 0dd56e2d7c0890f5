"""Shared memory for payloads."""
