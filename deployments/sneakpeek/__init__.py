"""Evidence of what a request holds: neighbours among an application's training data."""
