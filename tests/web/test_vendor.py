"""The JavaScript of others that is shipped is what was published, with its licences."""

from __future__ import annotations

import hashlib

from tests.web.fetch_vendor import VENDOR, listed


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
