"""A process that ends a test server and deletes its folder as soon as no process uses it any more.

Run as `python watcher.py PLACE PREFIX`. It makes the folder, prints its path, and watches it from when its input ends:
so there is no moment at which whoever asked for a folder can be killed and leave it. It outlives whole test sessions.

A process that uses the server holds a lock on a file of its own in FOLDER/users; death gives the lock up, and unlike a
pid it cannot be taken for another's.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

POLL_SECONDS = 0.1
PATIENCE_SECONDS = 15.0


def main(folder: Path) -> None:
    """Wait until nobody uses the server in `folder`, then leave nothing of it."""
    while is_used(folder):
        time.sleep(POLL_SECONDS)
    stop_server(folder / "data")
    give_up = time.monotonic() + PATIENCE_SECONDS
    # An initdb whose parent was killed may still be writing: deleting goes on until it has failed.
    while folder.exists() and time.monotonic() < give_up:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(POLL_SECONDS)


def is_used(folder: Path) -> bool:
    """Tell whether a living process uses the server; if none does, close the folder to newcomers."""
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            users = list((folder / "users").iterdir())
            dead = [user for user in users if not is_held(user)]
            for user in dead:
                user.unlink(missing_ok=True)
            if len(dead) < len(users):
                return True
            (folder / "closed").touch()
            return False
    except FileNotFoundError:
        return False


def is_held(user: Path) -> bool:
    """Tell whether a living process has this user's file locked."""
    try:
        file = user.open("r+")
    except FileNotFoundError:  # this user has just left
        return False
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def stop_server(data: Path) -> None:
    """Stop the server at once: its data is deleted next, so nothing needs to be written."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    for signal_number in (signal.SIGQUIT, signal.SIGKILL):
        try:
            pid = int((data / "postmaster.pid").read_text().split()[0])
            os.kill(pid, signal_number)
        except (OSError, ValueError, IndexError):
            return
        # The file and not the pid: a container without an init process keeps the dead as zombies.
        while (data / "postmaster.pid").exists() and time.monotonic() < give_up:
            time.sleep(POLL_SECONDS / 5)


def make_folder(place: str, prefix: str) -> Path:
    """Make the folder, which the account that the server runs under can pass through."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    folder.chmod(0o711)
    (folder / "users").mkdir()
    (folder / "lock").touch()
    return folder


if __name__ == "__main__":
    # Forked away, so that whoever started this need not wait for it and never has it as a zombie; in a session of its
    # own, so that a signal to all processes of a terminal or a test run does not reach it.
    if os.fork() == 0:
        os.setsid()
        made = make_folder(*sys.argv[1:3])
        try:
            os.write(1, f"{made}\n".encode())
        except BrokenPipeError:
            pass
        os.close(1)
        os.read(0, 1)
        os.close(0)
        main(made)
    os._exit(0)
