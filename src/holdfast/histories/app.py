"""The code to check against: the workflows of a module, given by its name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from typing import Any, NamedTuple

from holdfast.definitions import Registry, Workflow
from holdfast.errors import BadInput, HoldfastError, NonDeterministic

_SHOWN = 8


class CodeAtHand(NamedTuple):
    """The workflows of an app and, if it is an engine, the queues that it serves."""

    registry: Registry
    queues: frozenset[str] = frozenset()


def load_app(name: str) -> Registry:
    """Return the workflows of an app; see `load_code`."""
    return load_code(name).registry


def load_code(name: str) -> CodeAtHand:
    """Return the workflows of `module:attribute`: an engine, a workflow, a list of them, or a function of no arguments.

    The current directory is looked in first. An engine is not opened. What the code prints goes to stderr.

    Raises:
        BadInput: there is no such module or attribute, or it is none of these.
        NonDeterministic: a workflow uses the clock, random numbers or the outside world.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise BadInput(f"--app {name}: write module:attribute, as in shop.main:engine")
    with redirect_stdout(sys.stderr):
        return _code(name, _found(name, module_name, attribute))


def _found(name: str, module_name: str, attribute: str) -> Any:
    module = _imported(name, module_name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            has = _workflows_in(module)
            there = f"; it has {', '.join(has[:_SHOWN])}" if has else "; it has no engine and no workflow"
            raise BadInput(f"--app {name}: module {module_name!r} has no {attribute!r}{there}")
        found = getattr(found, part)
    return found


def _imported(name: str, module_name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()  # the module may just have been written
    try:
        return importlib.import_module(module_name)
    except NonDeterministic:
        raise
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        raise BadInput(f"--app {name}: {module_name!r} cannot be imported: {type(error).__name__}: {said}") from error


def _workflows_in(module: Any) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, Workflow) or _has_registry(value)]


def _has_registry(value: Any) -> bool:
    return isinstance(getattr(value, "registry", None), Registry)


def _code(name: str, found: Any) -> CodeAtHand:
    if _has_registry(found):
        return CodeAtHand(found.registry, frozenset(found._queues.names))
    if isinstance(found, Workflow):
        return CodeAtHand(Registry([found]))
    if isinstance(found, Iterable) and not isinstance(found, str | bytes):
        return CodeAtHand(_made(name, lambda: Registry(found)))
    if callable(found):
        value = _made(name, found)
        if not callable(value) or _has_registry(value) or isinstance(value, Workflow):
            return _code(name, value)
    raise BadInput(f"--app {name}: is {type(found).__name__}; it must be an engine, a list of workflows, or a function")


def _made(name: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except NonDeterministic:
        raise
    except HoldfastError as error:
        raise BadInput(f"--app {name}: {error}") from error
    except Exception as error:
        raise BadInput(f"--app {name}: calling it failed: {type(error).__name__}: {error}") from error
