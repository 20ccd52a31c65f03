"""What is asked of the operating system, and what happens where it does not answer."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.support.paths import ROOT

from holdfast import system
from holdfast.errors import HoldfastError, UnsupportedSystem
from holdfast.stores.liveness import WorkerLock


@pytest.fixture(autouse=True)
def forgotten():
    """Let nothing that a test pretends be remembered."""
    system._boot_id.cache_clear()
    yield
    system._boot_id.cache_clear()


def imported(setup: str) -> subprocess.CompletedProcess[str]:
    """Import holdfast in a process of its own, after something was pretended."""
    code = f"{textwrap.dedent(setup)}\nimport holdfast\n"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)


def test_on_windows_importing_says_in_one_sentence_that_it_does_not_work():
    """No module is missing first: the sentence is what the user sees."""
    done = imported("""
        import sys
        sys.modules["fcntl"] = None
        import asyncio, ctypes, subprocess, socket, logging, inspect, msgspec, apsw  # those of another platform differ
        sys.platform = "win32"
    """)
    *_, said = done.stderr.strip().splitlines()
    assert done.returncode != 0
    assert said.startswith("holdfast.errors.UnsupportedSystem: holdfast does not run on Windows")
    assert "WSL" in said
    assert issubclass(UnsupportedSystem, ImportError)
    assert issubclass(UnsupportedSystem, HoldfastError)


def test_without_file_locks_holdfast_can_be_imported_and_only_leases_count(tmp_path, monkeypatch):
    done = imported("""
        import sys
        sys.modules["fcntl"] = None
    """)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(system, "fcntl", None)
    lock = WorkerLock(str(tmp_path / "shop.db"), "w")
    assert not lock.effective
    lock.remove()


def test_a_lock_is_held_until_its_file_is_closed(tmp_path):
    path = tmp_path / "lock"
    first, second = (os.open(path, os.O_CREAT | os.O_RDWR) for _ in range(2))
    assert system.lock(first)
    assert not system.lock(second)
    os.close(first)
    assert system.lock(second)
    os.close(second)


def test_the_time_since_boot_goes_on_without_the_clock_that_linux_has(monkeypatch):
    known = system.boot_time()
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    fallen_back = system.boot_time()
    assert fallen_back <= system.boot_time()
    assert abs(fallen_back - known) < 1e15  # it is a number of the same kind, from another origin


def test_a_boot_that_was_known_stays_known_when_no_file_can_be_opened(monkeypatch):
    """A process out of descriptors must not take every other worker for one of another boot."""
    known = system.boot_id()
    assert known
    monkeypatch.setattr(Path, "read_text", _too_many_files)
    assert system.boot_id() == known


def test_a_boot_that_cannot_be_told_is_asked_for_again(monkeypatch):
    with monkeypatch.context() as none:
        none.setattr(Path, "read_text", _too_many_files)
        assert system.boot_id() == ""
    assert system.boot_id() != ""


def _too_many_files(*given: object) -> str:
    raise OSError(24, "Too many open files")


def test_on_macos_the_boot_is_asked_of_the_kernel_and_stands_for_the_machine(monkeypatch):
    """There is no /proc, and process ids mean the same to all processes of a boot."""
    monkeypatch.setattr(system.sys, "platform", "darwin")
    monkeypatch.setattr(system, "_BOOT_ID", "/nowhere/boot_id")
    monkeypatch.setattr(system, "_NAMESPACE", "/nowhere/pid")
    monkeypatch.setattr(system, "_sysctl", lambda name: "D1B2" if name == b"kern.bootsessionuuid" else "")
    assert (system.boot_id(), system.machine()) == ("D1B2", "D1B2")


def test_where_nothing_tells_no_process_is_taken_for_one_of_this_machine(monkeypatch):
    monkeypatch.setattr(system, "_BOOT_ID", "/nowhere/boot_id")
    monkeypatch.setattr(system, "_NAMESPACE", "/nowhere/pid")
    assert system.boot_id() == ""
    assert system.machine() != system.machine()


def test_a_kernel_without_that_name_says_nothing():
    assert system._sysctl(b"kern.no_such_name") == ""


def test_a_process_is_there_or_not():
    assert system.process_exists(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not system.process_exists(child.pid)


def test_a_process_is_told_from_others_of_its_number_until_it_has_ended():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        began = system.process_began(child.pid)
        assert began
        assert began == system.process_began(child.pid)
    assert system.process_began(child.pid) is None


def test_of_a_process_that_nothing_is_told_of_is_known_that_it_is_there(monkeypatch):
    monkeypatch.setattr(Path, "read_bytes", _too_many_files)
    assert system.process_began(os.getpid()) == ""


def test_no_other_module_asks_the_system_for_these():
    """Each has a fall-back in one place; used in another it would have none."""
    only_here = ("fcntl", "/proc/", "CLOCK_BOOTTIME", 'boot_id"', "clock_gettime_ns")
    found = {
        f"{path.relative_to(ROOT)}: {word}"
        for path in (ROOT / "src" / "holdfast").rglob("*.py")
        for word in only_here
        if path.name != "system.py" and path.parent.name != "determinism" and word in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if _says(node, word)
    }
    assert found == set()


def _says(node: ast.AST, word: str) -> bool:
    if isinstance(node, ast.Import):
        return any(each.name == word for each in node.names)
    if isinstance(node, ast.Attribute):
        return node.attr == word != "fcntl"
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(word)
