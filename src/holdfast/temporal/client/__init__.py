"""What callers ask of a Temporal server: starting runs, looking at them, acting on them."""
