"""Files that commands take: scenarios, serving files, profiles and placement problems."""
