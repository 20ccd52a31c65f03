"""What holdfast uses of the operating system: file locks, the boot, a clock that is never set, processes.

| | Linux | macOS | elsewhere |
|---|---|---|---|
| lock files | `flock` | `flock` | none: only leases tell that a worker died |
| which boot | `/proc` | `kern.bootsessionuuid` | not known: locks and leases tell |
| time since boot | `CLOCK_BOOTTIME` | `CLOCK_MONOTONIC`, which goes on while the machine sleeps | the same |
| whose process ids | the namespace in `/proc` | the boot | not known: no process is looked for |

holdfast is tested on Linux. On Windows it is not supported, and importing it says so.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from holdfast.clock import new_id
from holdfast.errors import UnsupportedSystem

try:
    import fcntl as fcntl  # those that need more of it than is here import it from here
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NAMESPACE = "/proc/self/ns/pid"
_MAC_BOOT_ID = b"kern.bootsessionuuid"


def refuse_unsupported() -> None:
    """Say on which systems holdfast does not run.

    Raises:
        UnsupportedSystem: on this one.
    """
    if sys.platform == "win32" or not hasattr(os, "register_at_fork"):
        name = "Windows" if sys.platform == "win32" else sys.platform
        raise UnsupportedSystem(
            f"holdfast does not run on {name}, which has no locks that end with their process and no process groups: "
            "use Linux (WSL or a container will do) or macOS"
        )


def lock(descriptor: int) -> bool:
    """Take the lock of an open file if it is free; the kernel frees it when the last descriptor is closed.

    False if another process has it, or if there are no locks here.
    """
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def boot_time() -> int:
    """Return microseconds since boot, counting time the machine was suspended."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000


def boot_id() -> str:
    """Return which boot of the machine this is, empty if it does not say.

    It is remembered: a process that has no descriptor left to read it must not take other workers for dead.
    """
    known = _boot_id()
    if not known:
        _boot_id.cache_clear()
    return known


@functools.cache
def _boot_id() -> str:
    with suppress(OSError):
        return Path(_BOOT_ID).read_text("ascii").strip()
    return _sysctl(_MAC_BOOT_ID) if sys.platform == "darwin" else ""


def _sysctl(name: bytes) -> str:
    """Return what macOS says under a name, empty if it says nothing."""
    with suppress(OSError, AttributeError):
        import ctypes  # on macOS only

        library = ctypes.CDLL(None)
        value, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
        if library.sysctlbyname(name, value, ctypes.byref(size), None, ctypes.c_size_t(0)) == 0:
            return value.value.decode("ascii", "replace")
    return ""


def machine() -> str:
    """Return what tells whether a process id of another process means the same process here; random if nothing does."""
    with suppress(OSError):
        return f"{boot_id()} {os.readlink(_NAMESPACE)}"
    if sys.platform == "darwin" and boot_id():
        return boot_id()
    return new_id()


def process_exists(pid: int) -> bool:
    """Whether there is a process of this number on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def process_began(pid: int) -> str | None:
    """Return what tells a process from earlier ones of its number, empty if nothing does; None if there is none.

    One that was killed and is kept for a parent that does not ask after it is none.
    """
    if not process_exists(pid):
        return None
    with suppress(OSError, IndexError):
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if state in (b"Z", b"X") else fields[18].decode()
    return ""


AuditWatch = Callable[[str, tuple[object, ...]], None]
_audit_watches: dict[str, tuple[AuditWatch, ...]] = {}


def watch_audited(events: Iterable[str], watch: AuditWatch) -> None:
    """Call a function at each audited event of these names, from now to the end of the process.

    Python calls every audit hook at every event of the process, of which `sys._getframe` is one that each step makes:
    so all of holdfast has one hook, and for the other events nothing but a look into a table happens.
    """
    if not _audit_watches:
        sys.addaudithook(_audited)
    for event in events:
        _audit_watches[event] = (*_audit_watches.get(event, ()), watch)


def _audited(
    event: str, arguments: tuple[object, ...], find: Callable[[str], Iterable[AuditWatch] | None] = _audit_watches.get
) -> None:
    watches = find(event)  # an argument, for the globals of this module are gone at exit before the hook is
    if watches is not None:
        for watch in watches:
            watch(event, arguments)


refuse_unsupported()
