"""Completion of commands, options and axes, as a shell asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meshkit.cli.main import main

ROOT = Path(__file__).parents[2]
pytest.importorskip("argcomplete")


def complete(line: str, tmp_path: Path) -> list[str]:
    """Return the words that may follow a line, from the protocol of argcomplete."""
    answer = tmp_path / "answer"
    environ = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " ",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, "-m", "meshkit"]
    subprocess.run(command, env=environ, cwd=ROOT, timeout=60, check=False, stderr=subprocess.PIPE)
    return [word.strip() for word in answer.read_text().split("\n") if word.strip()]


def test_commands_options_and_axes_are_completed(tmp_path: Path) -> None:
    assert complete("meshkit pl", tmp_path) == ["plan"]
    assert set(complete("meshkit plan dp=4 --no", tmp_path)) == {"--nodes"}
    assert "--tp" in complete("meshkit bench --t", tmp_path)
    assert complete("meshkit help ex", tmp_path) == ["explain"]
    assert set(complete("meshkit completion ", tmp_path)) >= {"bash", "zsh", "fish"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_code_for_a_shell_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    code = capsys.readouterr().out
    assert "meshkit" in code
    assert "_ARGCOMPLETE" in code
    if found := shutil.which(shell):
        done = subprocess.run([found, "-n"], input=code, text=True, capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "tcsh" in capsys.readouterr().err
