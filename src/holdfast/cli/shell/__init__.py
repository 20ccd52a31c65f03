"""Commands about the command line itself: its settings, its completion, its schemas, its first answer."""
