"""The console script: its commands, exit codes and messages, and what it does not import."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from meshkit import LaunchError, SpecError
from meshkit.cli import bench, main
from meshkit.cli import ranks as check
from meshkit.cli.main import Command, Result
from meshkit.core import VERSION
from tests.bench.results.example_runs import CLEAN
from tests.core.example_reports import REPORT

ROOT = Path(__file__).parents[2]


def meshkit(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A real run of ``python -m meshkit``."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "meshkit", *arguments],
        env={**os.environ, **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_the_commands_are_listed(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.main(arguments) == 0
    out, err = capsys.readouterr()
    for name in main.COMMANDS:
        command = main.load_command(name)
        assert f"  {name:7}  {command.help}\n" in out
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
    if name != "store"  # it runs until Ctrl-C; tests/cli/commands/test_store.py has its examples
    for example in main.load_command(name).examples
]


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_an_example_runs(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    if words[0] in ("check", "bench", "hello") and "-n 4" in " ".join(words):
        words = [word.replace("1K:64K", "1K") for word in words]
    code = main.main(words)
    out, err = capsys.readouterr()
    assert out
    assert code == 0 or (words[0] == "doctor" and "FAILED" in out), err


@pytest.mark.parametrize("command", ["", "bench"])
def test_help_does_not_import_torch(command: str, tmp_path: Path) -> None:
    """The last line shows that the test notices an import, here of an empty torch."""
    (tmp_path / "torch.py").touch()
    code = (
        "import sys\nfrom meshkit.cli.main import main\n"
        f"code = main([{command!r}, '--help'] if {command!r} else ['--help'])\n"
        "print(code, 'torch' in sys.modules)\n"
        "import torch\nprint('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-2:] == ["0 False", "True"], done.stderr


def test_a_command_is_read_without_the_others() -> None:
    code = (
        "import sys\nfrom meshkit.cli.main import COMMANDS, main\nmain(['plan', 'dp=2'])\n"
        "print([name for name in COMMANDS if f'meshkit.cli.commands.{name}' in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "['plan']", done.stderr


def test_version_is_that_of_the_project() -> None:
    assert meshkit("--version").stdout == meshkit("-V").stdout == f"meshkit {VERSION}\n"
    assert f'\nversion = "{VERSION}"\n' in (ROOT / "pyproject.toml").read_text()


# ---------------------------------------------------------------- misuse

MISUSE = [
    *("helo -n 2", "xyz", "dp=4 tp=2", "doctor --js", "doctor --zzzz", "plan dp=4 --node=2"),
    *("doctor now", "plan", "plan dp=4 --nodes", "help plam", "plan --dp 4", "diff dp=2 dp=4"),
]


@pytest.mark.parametrize("typed", MISUSE)
def test_misuse_has_exit_code_2_and_a_fix(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(typed.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"meshkit {typed}: ")
    assert err.splitlines()[-1].startswith("  Fix: ")


def test_an_error_is_json_if_json_was_requested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", "dp=3", "--world-size", "8", "--json"]) == 2
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert (json.loads(out)["ok"], err) == (False, "")
    assert (error["type"], error["call"]) == (
        "SpecError",
        "meshkit plan dp=3 --world-size 8 --json",
    )
    assert error["summary"] in error["text"]
    assert error["fix"]


# ---------------------------------------------------------------- sizes in every spelling


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
    answer: Callable[[str], tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[object] = []

    def keep(n: int, request: object, *_: object) -> object:
        requests.append(getattr(request, "axes", request))
        return REPORT if isinstance(request, dict) else (0, CLEAN)

    monkeypatch.setattr(check, "_check_locally", keep)
    monkeypatch.setattr(bench, "_measure_locally", keep)
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
    ("error", "code"),
    [
        (LaunchError("no.", fix="yes."), 1),
        (SpecError("no.", fix="yes."), 2),
        (ImportError("No module named 'torch'"), 1),
    ],
)
def test_an_error_is_one_message_without_traceback(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    text = str(error)
    assert outcome(monkeypatch, error) == code
    assert capsys.readouterr() == ("", f"meshkit try: {text}\n")


def test_an_interrupt_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr() == ("", "meshkit try: interrupted.\n")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")  # one line for all ranks of a launcher
    assert outcome(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr() == ("", "")


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


@pytest.mark.parametrize(
    "module",
    [
        "meshkit.cli.main",
        "typing",
        "importlib",
        "argparse",
        "meshkit.cli.bench",
        "numpy",
    ],
)
def test_ctrl_c_while_commands_are_imported_is_one_line(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRESSED.format(module), "bench", "dp=2", "-n", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert re.fullmatch(r"meshkit(?: bench)?: interrupted\.\n", done.stderr)
