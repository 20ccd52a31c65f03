"""Replay decides: pure, synchronous, without store, clock, network or threads."""
