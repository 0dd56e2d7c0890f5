"""One file or folder a paper; each is a source of bids."""
