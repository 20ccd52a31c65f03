"""Texts that must be shown as text, whatever shows them: a terminal or a browser."""

from __future__ import annotations

HOSTILE = [
    "<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "javascript:alert(1)", "{{7*7}}", "${7*7}",
    "<svg/onload=alert(1)>", "\"><b>", "'--", "`id`", "$(id)", "%s%n%x", "\\x1b[31m", "&lt;b&gt;", "<!--", "]]>",
    "\x1b[31mred", "\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "\x1b[6n",
    "\x1bP$q\"p\x1b\\", "\x9b31m", "\x9d0;title\x9c", "\x90q\x9c", "\x07", "\x08\x08\x08", "\rover", "a\nb\n",
    "\x0b\x0c", "\x7f", "\x00", "\u202egnirts", "\u2066isolated\u2069", "\u200bzero\u200b", "\ufeffmark",
    "\u2028line\u2029", "\u061c", "\ufff9note\ufffb", "\U000e0041tag", "<" * ((2 << 20) - 200),
]  # fmt: skip
"""Forty: markup, templates and shells, control sequences of terminals, marks that turn text, 2 MiB of one sign."""
