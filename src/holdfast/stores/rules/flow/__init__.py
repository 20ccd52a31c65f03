"""What holds runs back: lanes, pauses of workflows and queues, and moves to another runtime."""
