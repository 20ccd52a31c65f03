"""Limits that workers share."""
