"""Commands as they were typed: what stands in quotes and what can be typed again."""

from __future__ import annotations

import shlex

import pytest

from meshkit.cli import terminal
from meshkit.cli.command import to_ascii
from meshkit.cli.main import parser
from meshkit.cli.options.command_line import CommandLine, command_line, flagged, format_option


def test_sizes_and_options_stand_as_they_were_typed() -> None:
    call = CommandLine(
        "meshkit explain", (0, {"dp": 4, "seed": 2}), {"seed": 0, "order": "dp seed"}
    )
    assert str(call) == "meshkit explain 0 dp=4 seed=2 --seed 0 --order 'dp seed'"
    assert shlex.split(str(call))[-1] == "dp seed"


def test_a_change_of_a_call_is_one_too() -> None:
    call = CommandLine("meshkit plan", ({"dp": 4, "tp": 2},), {"world": 6})
    assert str(call.but(dp=None)) == "meshkit plan tp=2 --world 6"
    assert str(call.but(dp=None, tp=None)) == "meshkit plan dp=-1 --world 6"
    assert str(call.but(dp=3, world=None)) == "meshkit plan dp=3 tp=2"
    assert str(call.but(sp=2)) == "meshkit plan dp=4 tp=2 sp=2 --world 6"
    assert str(call.but(micro_batch=1)) == "meshkit plan dp=4 tp=2 --world 6 --micro-batch 1"


def test_sizes_in_one_word() -> None:
    call = CommandLine("meshkit diff", ({"dp": 4, "tp": 2}, '"dp=2"'), quoted=True)
    assert str(call) == 'meshkit diff "dp=4 tp=2" "dp=2"'
    assert str(call.but(dp=2)) == 'meshkit diff "dp=2 tp=2" "dp=2"'


def test_options() -> None:
    assert [*format_option("groups", ["dp tp", "dp"])] == ["--groups", "'dp tp'", "--groups", "dp"]
    assert [*format_option("all", True)] == ["--all"]
    assert [*format_option("nodes", "7,8")] == ["--nodes", "7,8"]


def test_what_is_as_usual_is_not_quoted_and_a_whole_number_has_no_point() -> None:
    typed_ = ["bench", "dp=2", "--iters", "7", "--sizes", "1k:4M", "--timeout", "2.0", "--plot"]
    asked = parser(["bench"]).parse_args([*typed_, "x y.png", "--warm-up", "3", "--json"])
    assert str(command_line(asked, {"dp": 2})) == (
        "meshkit bench dp=2 --sizes 1k:4M --iters 7 --timeout 2 --plot 'x y.png' --json"
    )
    asked = parser(["check"]).parse_args(["check", "dp=2", "--timeout", "0.5"])
    assert str(command_line(asked, {"dp": 2}).but(n=2)) == "meshkit check dp=2 --timeout 0.5 -n 2"
    asked = parser(["check"]).parse_args(["check", "dp=2"])
    assert str(command_line(asked, {"dp": 2})) == "meshkit check dp=2"


def test_only_the_fix_is_flagged() -> None:
    said = "micro_batch=3: no.\n  Fix: global_batch=96, or micro_batch one of 1, 5; micro_batch."
    assert flagged(said) == (
        "micro_batch=3: no.\n  Fix: --global-batch 96, or --micro-batch one of 1, 5; micro_batch."
    )


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
    found = terminal.lines()
    monkeypatch.undo()
    assert found == (terminal.LINES if drawn else "")


@pytest.mark.parametrize(("columns", "width"), [("97", 97), ("x", 80), ("0", 80)])
def test_columns_are_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("os.get_terminal_size", lambda _: (_ for _ in ()).throw(OSError()))
    assert terminal.width() == width


def test_what_the_terminal_can_show_stays() -> None:
    assert to_ascii("─ │ \u2713", "─│") == "─ │ \\u2713"
    assert to_ascii("─") == "\\u2500"
