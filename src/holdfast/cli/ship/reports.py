"""What a check found, in words, as a JUnit report, and as annotations of a pull request on GitHub."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterator

from holdfast.histories.misfits import REASONS, CallLine, CheckReport, Misfit, MisfitGroup
from holdfast.texts import printable

_AROUND = 1
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def text_of(report: CheckReport, took: float) -> Iterator[str]:
    """Yield the lines for a person."""
    runs = f"{report.runs:,} open run{'' if report.runs == 1 else 's'}"
    workflows = f"{report.workflows:,} workflow{'' if report.workflows == 1 else 's'}"
    blocked = report.runs - report.fit
    said = "all fit" if not blocked else f"{report.fit:,} fit, {blocked:,} would be blocked"
    yield f"Replayed {runs} of {workflows} against this code in {took:.1f} s: {said}."
    for group in report.groups:
        yield ""
        yield from _group(group)
    if report.warnings:
        yield ""
    for warning in report.warnings:
        yield f"warning: {warning}"
    if blocked:
        yield ""
        yield "Not fit to deploy."


def _group(group: MisfitGroup) -> Iterator[str]:
    example = group.example
    runs = f"{group.count:,} run{'' if group.count == 1 else 's'}"
    yield f"{group.workflow}  {runs}, such as {', '.join(group.runs[:3])}"
    if not example.path:
        yield f"  {REASONS.get(group.kind, group.kind)}: {example.message}"
        return
    yield f"  at {example.path}: history has {example.history}; the code now has {_short(example.code)}"
    yield from _beside(example)
    yield from _source(example)
    if example.advice:
        advice = example.advice
        yield f"  {advice[:1].upper()}{advice[1:]}"
    if example.trial is not None:
        if group.tried:
            yield f"  With that, {group.fit_patched:,} of {group.count:,} fit (tried)."
        else:
            yield f"  That was not tried: {example.trial.said}."


def _short(said: str) -> str:
    return re.sub(r"(?:/[^/\s:]+)+/", lambda found: _relative(found[0]), said)


def _beside(example: Misfit) -> Iterator[str]:
    """Yield the recorded calls beside the present ones."""
    if not example.recorded and not example.present:
        return
    rows = [("recorded", "now", "")]
    for number in range(max(len(example.recorded), len(example.present))):
        was = example.recorded[number] if number < len(example.recorded) else None
        now = example.present[number] if number < len(example.present) else None
        rows.append(
            (_call(was), _call(now), f"{_relative(now.file)}:{now.line}" if now is not None and now.file else "")
        )
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for number, (was_said, now_said, place) in enumerate(rows):
        mark = " " if number == 0 or was_said == now_said else "!"
        yield f"  {mark} {was_said.ljust(widths[0])}  {now_said.ljust(widths[1])}  {place}".rstrip()


def _call(call: CallLine | None) -> str:
    return f"{call.path} ({call.kind})" if call is not None else "-"


def _source(example: Misfit) -> Iterator[str]:
    """Yield the lines of the present code around the divergence."""
    if not example.file:
        return
    lines = linecache.getlines(example.file)
    if not 0 < example.line <= len(lines):
        return
    yield f"  {_relative(example.file)}"
    for number in range(max(1, example.line - _AROUND), min(len(lines), example.line + _AROUND) + 1):
        mark = "+" if number == example.line else " "
        yield f"  {mark} {number:>4}  {lines[number - 1].rstrip()}"


def _relative(path: str) -> str:
    """Return a path as seen from here, if it is inside of here."""
    here = os.getcwd() + os.sep
    return path[len(here) :] if path.startswith(here) else path


def junit_of(report: CheckReport, took: float) -> str:
    """Return a report as test runners write it: one case for each group, and one for the runs that fit."""
    cases = [f'    <testcase classname="holdfast.check" name="{report.fit} open runs fit" time="{took:.3f}"/>']
    for group in report.groups:
        name = _xml(f"{group.workflow}: {group.count} runs would be blocked{_at(group)}")
        message, text = _xml(group.example.message), _xml("\n".join(_group(group)))
        cases += [
            f'    <testcase classname="holdfast.check.{_xml(group.workflow)}" name="{name}">',
            f'      <failure type="{_xml(group.kind)}" message="{message}">{text}</failure>',
            "    </testcase>",
        ]
    total, failed = len(report.groups) + 1, len(report.groups)
    counted = f'tests="{total}" failures="{failed}" errors="0" time="{took:.3f}"'
    suite = [f'  <testsuite name="holdfast check" {counted}>', *cases, "  </testsuite>"]
    return "\n".join(['<?xml version="1.0" encoding="utf-8"?>', "<testsuites>", *suite, "</testsuites>"])


def _at(group: MisfitGroup) -> str:
    return f" at {group.example.path}" if group.example.path else ""


def _xml(text: str) -> str:
    clean = _NO_XML.sub("\ufffd", text)
    return clean.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def github_of(report: CheckReport) -> Iterator[str]:
    """Yield a workflow command of GitHub Actions for each group, at its line of the present code."""
    for group in report.groups:
        example = group.example
        at = f"file={_property(_relative(example.file))},line={example.line}," if example.file else ""
        title = _property(f"{group.count} open runs of {group.workflow} would be blocked")
        yield f"::error {at}title={title}::{_data(chr(10).join(map(printable, _group(group))))}"
    for warning in report.warnings:
        yield f"::warning title=not deterministic::{_data(printable(warning))}"
    if not report.groups:
        yield f"::notice title=holdfast check::{report.runs} open runs fit"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
