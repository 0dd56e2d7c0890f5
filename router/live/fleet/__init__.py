"""Holds the frontends and backends that a router has, and what each of them can do."""
