"""The cost of models: typed profiles, their files, and the zoo of known ones."""
