"""Acting at a desk beside single runs: starting, sending, dead letters, schedules, what is paused, what is deleted."""
