"""Acting at a desk besides acts on single runs: starting, sending, dead letters, schedules, pauses, purges."""
