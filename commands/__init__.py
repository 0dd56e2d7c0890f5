"""The `fermata` command: one module for each group of its verbs."""
