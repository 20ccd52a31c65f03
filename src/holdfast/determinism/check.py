"""The check of workflow code when it is registered: clocks, random numbers and as_completed over bare coroutines.

It reads the source of the workflow and of the functions of the same module that it calls, and resolves every called
name to the real object, so an alias hides nothing. What only runs inside a step is not workflow code and is not read.
What cannot be seen from the source (a helper in another module, a method of an object) is left to replay to find.
"""

from __future__ import annotations

import opcode
import random
from collections.abc import Callable
from datetime import date
from types import CodeType, FunctionType, ModuleType
from typing import Any

from holdfast.determinism.reader import CALLABLES, cells, helper_of, plain, read
from holdfast.determinism.rules import BUILTINS, LAST_NAMES, MOMENTS, Finding, last_names_in, watched_objects
from holdfast.errors import NonDeterministic

_IMPORT_NAME = opcode.opmap["IMPORT_NAME"]


def require_deterministic(function: Callable[..., object]) -> None:
    """Refuse workflow code that uses the clock, random numbers or the outside world.

    Raises NonDeterministic with one line for each finding.
    """
    findings = check(function)
    if findings:
        raise NonDeterministic("\n".join(map(str, findings)))


def check(function: Callable[..., object]) -> list[Finding]:
    """List the calls in workflow code that a replay would not repeat, in order of file and line.

    Call it when the module is complete (registration, not decoration): a helper defined further down is not yet known
    to the decorator. Lines with the comment ``# holdfast: allow`` are exempt. Without source the list is empty; it
    never raises.
    """
    try:
        root = plain(function)
        if root is None or not _worth_reading(root):
            return []
    except Exception:
        return []
    names = watched_objects()
    findings: list[Finding] = []
    seen = {root}
    pending = [root]
    while pending:
        reader = read(pending.pop(), names)
        if reader is not None:
            findings += reader.findings
            pending += reader.helpers - seen
            seen |= reader.helpers
    return sorted(dict.fromkeys(findings), key=lambda finding: (finding.file, finding.line))


def _worth_reading(function: FunctionType) -> bool:
    """Whether any name leads to something watched; for clean code this is all that is ever done."""
    seen = {function}
    pending = [function]
    while pending:
        function = pending.pop()
        known = function.__globals__
        values: list[Any] = list(cells(function).values()) if function.__closure__ else []
        codes = [function.__code__]
        names: list[str] = []
        for code in codes:
            names += code.co_names
            codes += [constant for constant in code.co_consts if type(constant) is CodeType]
            if _IMPORT_NAME in code.co_code[::2]:
                return True
        for name in names:
            if (value := known.get(name)) is not None:
                values.append(value)
            elif name in BUILTINS:
                return True
        for value in values:
            kind = type(value)
            if issubclass(kind, ModuleType):
                if not last_names_in(value.__name__).isdisjoint(names):
                    return True
            elif issubclass(kind, type):
                if value.__name__ in LAST_NAMES or (issubclass(value, date) and not MOMENTS.isdisjoint(names)):
                    return True
            elif (kind in CALLABLES and value.__name__ in LAST_NAMES) or issubclass(kind, random.Random):
                return True
            elif (helper := helper_of(value, function)) is not None and helper not in seen:
                seen.add(helper)
                pending.append(helper)
    return False
