"""stdout and stderr that are closed, full, or a pipe that nobody reads: real runs in a shell."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from meshkit.core.draw.colors import axis_hues

from meshkit.cli import terminal
from meshkit.cli.commands import check
from meshkit.cli.main import main

ROOT = Path(__file__).parents[2]
MISUSED = "meshkit plan four: 'four' is not the size of an axis.\n"


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


@pytest.mark.parametrize("where", [">&-", "> /dev/full", "<&- >&-"])
@pytest.mark.parametrize("command", ["plan dp=4 --nodes 2", "diff dp=2 dp=4 --json", "--help"])
def test_an_answer_that_cannot_be_written_is_a_failure(command: str, where: str) -> None:
    assert shell(f"{command} {where}") == (1, "", "")


def test_a_pipe_that_nobody_reads() -> None:
    _, out, err = shell("explain --all dp=20000 | true; echo over")
    assert (out, err) == ("over\n", "")


def test_no_ranks_are_started_where_nobody_hears_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr(check, "_check_locally", lambda n, *_: started.append(n))
    monkeypatch.setattr(sys, "stdout", None)
    assert (main(["check", "dp=2", "-n", "2"]), started) == (1, [])


@pytest.mark.parametrize("where", ["2>&-", "2> /dev/full"])
@pytest.mark.parametrize("command", ["plan four", "plan", "plan dp=4 --nodes x", "x"])
def test_misuse_is_two_whatever_becomes_of_stderr(command: str, where: str) -> None:
    assert shell(f"{command} {where}") == (2, "", "")


def test_an_error_is_printed_if_stdout_is_closed() -> None:
    code, out, err = shell("plan four >&-")
    assert (code, out) == (2, "")
    assert err.startswith(MISUSED)


@pytest.mark.slow
def test_ranks_measure_where_stderr_is_closed() -> None:
    quick = "--ops broadcast --sizes 64 --iters 2 --warm-up 0 --device cpu --json"
    code, out, err = shell(f"bench dp=2 -n 2 {quick} 2>&-")
    assert (code, err) == (0, "")
    assert json.loads(out)["ok"]


def test_a_failure_that_cannot_be_printed_still_fails() -> None:
    assert shell("plan dp=4 >&- 2>&-") == (1, "", "")


class Stream:
    """A stdout of an encoding."""

    def __init__(self, encoding: str | None) -> None:
        self.encoding = encoding


@pytest.mark.parametrize(
    ("encoding", "drawn"),
    [("utf-8", True), ("cp437", True), ("latin-1", False), (None, False), ("none such", False)],
)
def test_lines_are_drawn_where_stdout_can_take_them(
    monkeypatch: pytest.MonkeyPatch, encoding: str | None, drawn: bool
) -> None:
    monkeypatch.setattr("sys.stdout", Stream(encoding))
    results = terminal.get_line_characters()
    monkeypatch.undo()
    assert results == (terminal.LINES if drawn else "")


@pytest.mark.parametrize(("columns", "width"), [("97", 97), ("x", 80), ("0", 80)])
def test_columns_are_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("os.get_terminal_size", lambda _: (_ for _ in ()).throw(OSError()))
    assert terminal.get_width() == width


class Terminal(io.StringIO):
    """A stdout that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({"TERM": "xterm"}, "\x1b[38;5;25mdp=4\x1b[0m: 4 ranks"),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, "\x1b[38;2;0;114;178mdp=4\x1b[0m: 4 ranks"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "dp=4: 4 ranks"),
        ({"TERM": "dumb"}, "dp=4: 4 ranks"),
        ({"TERM": "xterm", "NO_COLOR": ""}, "\x1b[38;5;25mdp=4\x1b[0m: 4 ranks"),
    ],
)
def test_an_axis_has_its_color_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], shown: str
) -> None:
    for name in ("TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert terminal.paint("dp=4: 4 ranks", ("dp",), "stdout") == shown
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert terminal.paint("dp=4: 4 ranks", ("dp",), "stdout") == "dp=4: 4 ranks"
    monkeypatch.setenv("FORCE_COLOR", "1")
    colored = terminal.paint("dp=4: 4 ranks", ("dp",), "stdout") != "dp=4: 4 ranks"
    assert colored is not bool(environ.get("NO_COLOR"))


def test_colors_are_those_of_the_pictures_and_change_no_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = "pp=2 dp=4: dp_shard, odp=3, dp=-1, x-dp; tp 0\n  Fix: meshkit plan dp=4"
    painted = terminal.paint(text, ("pp", "dp"), "stdout")
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == text
    for axis, color in axis_hues(["pp", "dp"]).items():
        assert f"\x1b[38;2;{';'.join(map(str, color))}m{axis}=" in painted
    assert painted.count("\x1b[38;2;") == 4
    assert "\x1b[1m  Fix:\x1b[0m" in painted
