"""The width, characters and streams of a terminal."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from meshkit.cli import terminal

ROOT = Path(__file__).parents[2]


def shell(arguments: str) -> tuple[int, str, str]:
    """Run a command line with redirections in a shell; return exit code, output and errors."""
    done = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -W error -m meshkit {arguments}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_pipe_without_a_reader_is_no_traceback() -> None:
    assert shell("explain --all dp=20000 | true; echo over")[1:] == ("over\n", "")


def test_an_answer_that_cannot_be_written_is_a_failure() -> None:
    assert shell("plan dp=4 > /dev/full") == (1, "", "")
    assert shell("plan dp=4 >&-")[0] == 1
    assert shell("plan four 2> /dev/full")[0] == 2


class Stream:
    """A stdout of an encoding."""

    def __init__(self, encoding: str | None) -> None:
        self.encoding = encoding


@pytest.mark.parametrize(
    ("encoding", "drawn"),
    [("utf-8", True), ("cp437", True), ("latin-1", False), (None, False), ("none such", False)],
)
def test_lines_are_drawn_if_stdout_can_encode_them(
    monkeypatch: pytest.MonkeyPatch, encoding: str | None, drawn: bool
) -> None:
    monkeypatch.setattr("sys.stdout", Stream(encoding))
    characters = terminal.get_line_characters()
    monkeypatch.undo()
    assert characters == (terminal.LINES if drawn else "")


@pytest.mark.parametrize(("columns", "width"), [("97", 97), ("x", 80), ("0", 80)])
def test_columns_are_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("os.get_terminal_size", lambda _: (_ for _ in ()).throw(OSError()))
    assert terminal.get_width() == width


def test_a_fix_is_bold_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert terminal.paint("x\n  Fix: y", "stderr") == "x\n  Fix: y"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert terminal.paint("x\n  Fix: y", "stderr") == "x\n\x1b[1m  Fix:\x1b[0m y"
