"""What workflow code sees."""
