"""WHEN and WHICH: every request-time decision."""
