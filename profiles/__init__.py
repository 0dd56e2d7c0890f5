"""What a model costs: typed profiles, their files, and the zoo of known ones."""
