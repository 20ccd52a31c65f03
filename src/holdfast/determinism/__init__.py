"""Determinism: what workflow code may not do, found when it is declared and when it runs."""
