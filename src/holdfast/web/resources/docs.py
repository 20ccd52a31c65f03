"""The page about the API: made of the table of routes, without a script, and with nothing of another origin."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import msgspec

from holdfast import __version__
from holdfast.web.assets import assets
from holdfast.web.problems import TITLES
from holdfast.web.routing import Route


def docs_page(routes: Sequence[Route], root: str) -> str:
    """Return the page; `root` is where the application is mounted."""
    static = f"{escape(root, quote=True)}/static/{assets().hash}"
    rows = "".join(map(_row, sorted(routes, key=lambda route: (route.path, route.method))))
    problems = "".join(f"<tr><td><code>{code}</code></td><td>{escape(said)}</td></tr>" for code, said in TITLES.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>holdfast: the HTTP API</title>
<link rel="stylesheet" href="{static}/css/tokens.css">
<link rel="stylesheet" href="{static}/css/shell.css">
</head>
<body>
<main>
<h1>The HTTP API</h1>
<p>holdfast {escape(__version__)}. Paths are below <code>{escape(root)}/api/v1</code>; requests bring
<code>Authorization: Bearer hf_...</code>. Answers are JSON in UTF-8, times are UTC.
<a href="{escape(root, quote=True)}/api/v1/openapi.json">openapi.json</a> describes all of it in OpenAPI 3.1.</p>
<table class="tbl panel">
<thead><tr><th>Request</th><th>What it does</th><th>Role</th><th>Parameters</th><th>Body</th><th>Status</th></tr>
</thead>
<tbody>{rows}</tbody>
</table>
<h2>Problems</h2>
<p>An error is a problem of RFC 9457; its <code>type</code> ends with one of these.</p>
<table class="tbl panel"><thead><tr><th>Code</th><th>What it means</th></tr></thead><tbody>{problems}</tbody></table>
</main>
</body>
</html>
"""


def _row(route: Route) -> str:
    cells = (
        f"<code>{route.method} {escape(route.path)}</code>",
        escape(route.summary),
        f'<span class="st">{route.role}</span>',
        _fields(route.query),
        _fields(route.body),
        ", ".join(str(status) for status in (*route.statuses, *route.problems)),
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _fields(kind: object) -> str:
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return "an object" if kind is not None else ""
    shown = [
        f"<code>{escape(field.encode_name)}</code>{' (needed)' if field.required else ''}"
        for field in msgspec.structs.fields(kind)
    ]
    return ", ".join(shown)
