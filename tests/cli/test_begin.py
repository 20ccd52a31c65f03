"""The first five minutes: the demonstration, and a new directory whose program, test and settings work as they are."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from tests.support.paths import ROOT

from holdfast.cli import begin
from holdfast.cli.main import main


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_new_directory_has_a_main_a_test_and_settings_that_work(tmp_path, capsys):
    folder = tmp_path / "shop"
    assert main(["new", str(folder)]) == 0
    assert "next: cd " in capsys.readouterr().out
    assert run(folder, "main") == "['paid for lamp', 'lamp is on its way']\n"
    assert "1 passed" in run(folder, "pytest", "-q", "-p", "no:cacheprovider")
    assert "completed  order-1  fulfil" in run(folder, "holdfast", "list")
    assert "all fit" in run(folder, "holdfast", "check", "--jobs", "1")
    assert main(["new", str(folder)]) == 2
    assert "has files in it; name a new directory" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["new", str(tmp_path / "file" / "shop")]) == 2


def test_the_demonstration_is_that_of_the_checkout_and_is_shipped_in_the_wheel():
    assert begin.demonstration() == ROOT / "examples" / "demo.py"
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"examples/demo.py": "holdfast/demonstration.py"}


def test_the_demonstration_is_run_and_tells_how_it_ended(tmp_path, monkeypatch, capfd):
    script = tmp_path / "demo.py"
    script.write_text("import sys; print(sys.argv[1:], sys.flags.safe_path); sys.exit(3)")
    monkeypatch.setattr(begin, "demonstration", lambda: script)
    assert (main(["demo"]), main(["demo", "--fast"])) == (3, 3)
    assert capfd.readouterr().out == "[] True\n['--fast'] True\n"
