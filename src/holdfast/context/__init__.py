"""What workflow code sees: `ctx` and its verbs.

A new verb has its signature in `api.py`, its method in `run_context.py`, what it does in the file of its family here,
and what is recorded of it in `replay/entry.py`.
"""
