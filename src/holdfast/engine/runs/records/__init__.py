"""What a run leaves for people: dead letters, and the trail of its steps."""
