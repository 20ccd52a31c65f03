"""Runs in memory: from a turn to its commit, and from the commit to acting on it."""
