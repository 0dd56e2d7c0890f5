"""Open-loop load: requests leave when they are due, whatever the server does."""
