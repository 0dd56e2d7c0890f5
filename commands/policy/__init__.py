"""`fermata policy`: tables and trained policies."""
