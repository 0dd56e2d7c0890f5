"""The process that serves clients: it keeps each request until that has its one answer."""
