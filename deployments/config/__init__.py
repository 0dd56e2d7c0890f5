"""The deployment's configuration: read strictly, resolved to plain values."""
