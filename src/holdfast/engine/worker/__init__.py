"""The worker: what one process does to advance runs."""
