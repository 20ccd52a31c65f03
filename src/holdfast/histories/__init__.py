"""Recorded histories against the code at hand: one of them, all that are open before a deploy, one step by step."""
