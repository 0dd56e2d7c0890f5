"""Authentication, tenants, rate limits, TLS and connection limits."""
