"""What is drawn on a terminal: lines of text, rows in columns, the timeline of a run."""
