"""Clients as a live router knows them: their networks, accuracy floors and tenants' shares."""
