"""Bodies of steps: where they run, what they see of their step, and what their ends mean, for every runtime."""
