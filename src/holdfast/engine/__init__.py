"""The engine moves things between replay, which decides, and the store, which remembers."""
