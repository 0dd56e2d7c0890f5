"""Several routers in one world: kills, and applications that move between them."""
