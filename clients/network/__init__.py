"""How a client follows its network: bandwidth, size and quality of frames, what it holds back."""
