"""The JavaScript of others that is shipped is what was published, with its licences."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from tests.web.fetch_vendor import VENDOR, listed

from holdfast.web.assets import assets

STATIC = VENDOR.parent
KIB = 1024


def test_every_vendored_file_has_the_hash_that_is_written_down():
    found = {name: file["sha256"] for package in listed() for name, file in package["files"].items()}
    there = {path.relative_to(VENDOR).as_posix(): path for path in VENDOR.rglob("*") if path.is_file()}
    assert set(there) - {"vendor.toml"} == set(found)
    for name, expected in found.items():
        assert hashlib.sha256(there[name].read_bytes()).hexdigest() == expected, name


def test_every_vendored_package_ships_its_licence():
    for package in listed():
        assert package["licence"] in ("MIT", "Apache-2.0")
        assert any(name.startswith("licences/") for name in package["files"]), package["name"]


def test_the_page_is_small_and_loads_nothing_from_another_origin():
    scripts = [path for path in STATIC.rglob("*") if path.suffix in (".js", ".mjs")]
    styles = sorted(STATIC.rglob("*.css"))
    sent = assets().files
    for paths, most in ((scripts, 120), (styles, 12)):
        assert sum(len(sent[path.relative_to(STATIC).as_posix()].compressed or b"") for path in paths) < most * KIB
    own = [path for path in (*scripts, *styles, STATIC / "index.html") if VENDOR not in path.parents]
    assert [path.name for path in own if re.search(r"https?://", path.read_text())] == []


def test_scripts_and_styles_are_sent_as_they_are_but_for_comments():
    """Line by line, so that an error names the line that a person finds; those of others keep their licences."""
    for path, asset in assets().files.items():
        if not path.endswith((".css", ".js", ".mjs")):
            continue
        written, sent = ((STATIC / path).read_text().split("\n"), asset.plain.decode().split("\n"))
        assert len(written) == len(sent), path
        others = [(was, now) for was, now in zip(written, sent, strict=True) if was != now]
        assert not others or path.startswith(("css/", "js/")), path
        for was, now in others:
            assert (now, re.match(r"\s*(//|/\*|\*)", was) is not None) == ("", True), (path, was)


def test_the_page_makes_no_markup_of_text():
    """Nothing that the policy would refuse, and nothing that would let a value become markup or code."""
    dangerous = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|\beval\(|new Function"
    )
    own = [path for path in STATIC.rglob("*.js") if VENDOR not in path.parents]
    assert [path.name for path in own if dangerous.search(path.read_text())] == []
    assert re.findall(r"<script>|\bstyle=|\bon\w+=", (STATIC / "index.html").read_text()) == []


def test_everything_that_the_first_screen_imports_is_asked_for_at_once():
    """Without it a browser finds one module in another, and asks four times in a row before it paints."""
    named = {"preact": "preact.mjs", "preact/hooks": "hooks.mjs", "htm": "htm.mjs"}
    named |= {"@preact/signals": "signals.mjs", "@preact/signals-core": "signals-core.mjs"}
    found: set[Path] = set()

    def follow(file: Path) -> None:
        if file not in found:
            found.add(file)
            for name in re.findall(r'(?:from|^import)\s*"([^"]+)"', file.read_text(), re.MULTILINE):
                if name in named:
                    follow((VENDOR / named[name]).resolve())
                elif name.startswith("."):
                    follow((file.parent / name).resolve())

    for screen in ("js/main.js", "js/screens/runs.js"):
        follow((STATIC / screen).resolve())
    preloaded = re.findall(r'rel="modulepreload" href="\{\{static\}\}/([^"]+)"', (STATIC / "index.html").read_text())
    wanted = {str(file.relative_to(STATIC.resolve())) for file in found} - {"js/main.js"}
    assert sorted(preloaded) == sorted(wanted)
