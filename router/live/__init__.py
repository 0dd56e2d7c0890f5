"""The live driver of the engine and its parts."""
