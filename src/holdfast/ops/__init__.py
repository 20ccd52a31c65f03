"""Watching and tending an engine: what operators need besides the runs themselves."""
