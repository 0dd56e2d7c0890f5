"""Options of each process, from the configuration."""
