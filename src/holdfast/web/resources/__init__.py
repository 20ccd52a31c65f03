"""What the routes do: each handler asks the desk, and answers a view."""
