"""What holds runs back: pauses of workflows and queues."""
