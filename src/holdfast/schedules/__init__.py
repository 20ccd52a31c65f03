"""Schedules: runs started by the calendar."""
