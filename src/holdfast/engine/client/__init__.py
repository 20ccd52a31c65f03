"""What a caller asks of an engine."""
