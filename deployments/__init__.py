"""What `serve run` runs: configuration, application builder, frontend, backend, models."""
