"""Steps that other workers run: their queue, seen from both sides."""
