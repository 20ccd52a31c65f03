"""Durable workflows in plain Python."""
