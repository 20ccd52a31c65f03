"""What every request must pass before it is answered."""
