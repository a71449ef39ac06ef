"""The console script: its commands, exit codes and messages, and what it does not import."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshkit import LaunchError, SpecError
from meshkit.cli import bench, main, ranks
from meshkit.cli.main import Command, Result
from meshkit.errors import VERSION
from meshkit.launch.log import CLEAR
from tests.bench.example_runs import CLEAN
from tests.cli.processes import ROOT, Answers, begun, ended
from tests.plan.example_reports import REPORT


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_the_commands_are_listed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(arguments) == 0
    out, err = capsys.readouterr()
    for name in main.COMMANDS:
        command = main.load_command(name)
        assert f"  {name:9}  {command.help}\n" in out
        assert command.name == name
    assert out.endswith("examples:\n  meshkit help plan\n  meshkit plan dp=4 sp=2 --nodes 2\n")
    assert out.isascii()
    assert err == ""


@pytest.mark.parametrize("name", main.COMMANDS)
def test_the_help_of_a_command_ends_with_two_examples(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main.main(["help", name]) == 0
    text = capsys.readouterr().out
    assert main.main([name, "--help"]) == 0
    assert capsys.readouterr().out == text
    _, _, examples = text.rpartition("\nexamples:\n")
    lines = examples.replace("\\\n", "").splitlines()
    assert [shlex.split(line)[:2] for line in lines] == [["meshkit", name]] * 2
    assert max(map(len, text.splitlines())) <= 60


EXAMPLES = [
    shlex.split(f"{name} {example}".replace("\\\n", ""))
    for name in main.COMMANDS
    # store runs until Ctrl-C: tests/cli/test_ranks.py; status needs a job: test_status.py
    if name not in ("store", "status")
    for example in main.load_command(name).examples
]


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_an_example_runs(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    code = main.main(words)
    out, err = capsys.readouterr()
    assert out
    assert code == 0 or (words[0] == "doctor" and "FAILED" in out), err


LINES = (
    *("--help", "bench --help", "plan dp=4 --nodes 2 --json"),
    "explain 1 dp=4 --nodes 2 --json --seed 1 --seq 8",
)


def test_no_torch_is_imported() -> None:
    code = (
        "import sys\nfrom meshkit.cli.main import main\n"
        f"for line in {LINES}: print(main(line.split()), 'torch' in sys.modules)\n"
    )
    _, out, error = ended(begun("-c", code))
    shown = [line for line in out.splitlines() if line.endswith(("True", "False"))]
    assert shown == ["0 False"] * len(LINES), error


def test_the_version_is_that_of_the_project(answer: Answers) -> None:
    assert answer("--version") == answer("-V") == (0, f"meshkit {VERSION}\n", "")


# ---------------------------------------------------------------- errors, and sizes


def test_a_flag_with_a_value_is_told_to_stand_alone(answer: Answers) -> None:
    assert answer("explain dp=4 --all=3")[2].endswith(
        "Fix: write --all alone: it takes no value.\n"
    )


def test_an_error_is_json_if_json_was_requested(answer: Answers) -> None:
    code, out, err = answer("plan dp=3 --world-size 8 --json")
    error = json.loads(out)["error"]
    assert (code, json.loads(out)["ok"], err) == (2, False, "")
    call = "meshkit plan dp=3 --world-size 8 --json"
    assert (error["type"], error["call"]) == ("SpecError", call)
    assert error["summary"] in error["text"]
    assert error["fix"]


@pytest.mark.parametrize("sizes", ["dp=4 tp=2", "dp=4,tp=2", "'dp=4 tp=2'"])
@pytest.mark.parametrize(
    "command",
    [
        *("plan {} --nodes 2", "plan --nodes 2 {}", "explain 5 {}", "explain {} 5"),
        "move {} 'o/tp i -> o i/tp' o=8 i=8",
        "check {} -n 8",
        "bench {} -n 8",
    ],
)
def test_sizes_in_every_spelling_give_one_output(
    command: str,
    sizes: str,
    answer: Answers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[object] = []

    def keep(*given: object, **_: object) -> object:
        requests.append(str(given))
        return [REPORT] if given[0] is ranks.check_mesh else [(0, CLEAN)]

    for module in (ranks, bench):
        monkeypatch.setattr(module, "spawn_ranks", keep)
    outcome = answer(command.format(sizes))
    assert outcome[0] == 0, outcome
    assert outcome == answer(command.format("dp=4 tp=2"))
    assert requests[:1] == requests[1:]


# ---------------------------------------------------------------- dispatch, on a command of ours


def outcome(monkeypatch: pytest.MonkeyPatch, result: Result | BaseException) -> int:
    def run(_: Namespace) -> Result:
        if isinstance(result, BaseException):
            raise result
        return result

    command = Command("try", "try it", lambda _: None, run, ("", "--json"))
    monkeypatch.setattr(main, "COMMANDS", ("try",))
    monkeypatch.setattr(main, "load_command", lambda _: command)
    return main.main(["try"])


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (LaunchError("no.", fix="yes."), 1, "no.\n  Fix: yes."),
        (SpecError("no.", fix="yes."), 2, "no.\n  Fix: yes."),
        (ImportError("No module named 'torch'"), 1, "No module named 'torch'"),
        (KeyboardInterrupt(), 130, "interrupted."),
    ],
)
def test_an_error_is_one_message_without_traceback(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    text: str,
) -> None:
    assert outcome(monkeypatch, error) == code
    assert capsys.readouterr() == ("", f"meshkit try: {text}\n")


def test_an_interrupt_is_one_line_for_all_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert outcome(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def test_an_interrupt_erases_the_line_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert outcome(monkeypatch, KeyboardInterrupt()) == 130
    assert terminal.getvalue() == f"{CLEAR}meshkit try: interrupted.\n"


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        outcome(monkeypatch, ZeroDivisionError())


def text(words: str, *, ok: bool = True) -> Result:
    return Result(lambda: {"text": words}, lambda *, width, ascii: words, ok)


@pytest.mark.parametrize(
    ("answer", "code", "printed"),
    [
        (text("yes"), 0, "yes\n"),
        (text("no", ok=False), 1, "no\n"),
        (Result(), 0, ""),
        (text("h\u00f4te \u2713"), 0, "h\\xf4te \\u2713\n"),
    ],
)
def test_an_answer_is_printed_in_ascii(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: Result,
    code: int,
    printed: str,
) -> None:
    assert outcome(monkeypatch, answer) == code
    assert capsys.readouterr() == (printed, "")


PRESSED = """
import sys

class Pressed:
    def find_spec(self, name, *_):
        if name == {0!r}:
            raise KeyboardInterrupt

for name in ("typing", "importlib"):  # what a site imports before
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Pressed())
from meshkit.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["meshkit.cli.main", "importlib", "meshkit.cli.ranks", "numpy"])
def test_ctrl_c_while_commands_are_imported_is_one_line(module: str) -> None:
    code, out, error = ended(begun("-c", PRESSED.format(module), "bench", "dp=2", "-n", "2"))
    assert (code, out) == (130, "")
    assert re.fullmatch(r"meshkit(?: bench)?: interrupted\.\n", error)


# ---------------------------------------------------------------- terminals


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


@pytest.mark.parametrize(
    ("encoding", "drawn"),
    [("utf-8", True), ("cp437", True), ("latin-1", False), (None, False), ("none such", False)],
)
def test_lines_are_drawn_if_stdout_can_encode_them(
    monkeypatch: pytest.MonkeyPatch, encoding: str | None, drawn: bool
) -> None:
    monkeypatch.setattr("sys.stdout", SimpleNamespace(encoding=encoding))
    characters = main.get_line_characters()
    monkeypatch.undo()
    assert characters == (main.LINES if drawn else "")


@pytest.mark.parametrize(("columns", "width"), [("97", 97), ("x", 80), ("0", 80)])
def test_columns_are_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("os.get_terminal_size", lambda _: (_ for _ in ()).throw(OSError()))
    assert main.get_width() == width


def test_a_fix_is_bold_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for forced, start in (("0", "  Fix: "), ("1", "\x1b[1m  Fix:\x1b[0m ")):
        monkeypatch.setenv("FORCE_COLOR", forced)
        main.main(["plan", "dp"])
        assert capsys.readouterr().err.splitlines()[-1].startswith(start)


def test_characters_that_the_terminal_can_show_are_kept() -> None:
    assert main.to_ascii("\u2500 \u2713 a\n  b", "\u2500") == "\u2500 \\u2713 a\n  b"
    assert main.to_ascii("\udc80").isascii()  # os.fsdecode returns it for undecodable host names


# ---------------------------------------------------------------- Ctrl-C in real runs


def members(group: int) -> dict[int, str]:
    """Return the processes of a process group, and the command of each."""
    commands = {}
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                commands[int(folder.name)] = (folder / "cmdline").read_text()
        except (OSError, ValueError, IndexError):
            continue
    return commands


def wait_until_empty(group: int) -> None:
    deadline = time.monotonic() + 30
    while left := members(group):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def interrupt(delay: float, *words: str) -> tuple[int, str, str]:
    """Press Ctrl-C some time after a server of processes was started."""
    process = begun("-m", "meshkit", *words)
    deadline = time.monotonic() + 60
    while not any("forkserver" in command for command in members(process.pid).values()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    result = ended(process)
    wait_until_empty(process.pid)
    return result


@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_ctrl_c_while_ranks_import_torch(delay: float) -> None:
    code, out, error = interrupt(delay, "check", "dp=2", "-n", "2", "--device", "cpu")
    assert (code, out, error) == (130, "", "meshkit check: interrupted.\n")
