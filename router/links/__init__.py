"""Links: framed messages between frontends, router and backends; payloads pass the router by."""
