"""How gunicorn runs the service: the program is loaded once, and each process opens the engine for itself."""

from typing import Any

preload_app = True
workers = 2
threads = 4


def post_fork(server: Any, worker: Any) -> None:
    """Open the engine in a process that was just forked."""
    from app import call  # gunicorn finds it beside this file

    call.open()


def worker_exit(server: Any, worker: Any) -> None:
    """Stop the engine in order before its process exits."""
    from app import call

    call.close()
