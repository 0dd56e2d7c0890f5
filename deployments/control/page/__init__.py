"""The page, and the frames that it shows, made of the snapshots of routers."""
