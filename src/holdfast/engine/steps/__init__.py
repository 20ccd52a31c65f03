"""Step bodies: begun, limited, timed and judged."""
