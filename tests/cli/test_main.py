"""The console script: its commands, exit codes and messages, and what it does not import."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from meshkit import LaunchError, SpecError
from meshkit import __main__ as entry
from meshkit.cli import main
from meshkit.cli.command import Command, Result
from meshkit.core.version import VERSION

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


def test_help_lists_the_commands() -> None:
    done = meshkit("--help", COLUMNS="80", FORCE_COLOR="1")
    assert done.returncode == 0
    assert done.stderr == ""
    for name in main.COMMANDS:
        command = main.load_command(name)
        assert f"    {name:9} {command.help}\n" in done.stdout
        assert command.name == name
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("command", ["", *main.COMMANDS])
def test_help_does_not_import_torch(command: str) -> None:
    code = (
        "import sys\nfrom meshkit.cli.main import main\n"
        f"try:\n    main([{command!r}, '--help'] if {command!r} else ['--help'])\n"
        "except SystemExit as left:\n    print(left.code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr


def test_a_command_is_read_without_the_others() -> None:
    code = (
        "import sys\nfrom meshkit.cli.main import COMMANDS, main\nmain(['plan', 'dp=2'])\n"
        "print([name for name in COMMANDS if f'meshkit.cli.commands.{name}' in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "['plan']", done.stderr


def test_the_proof_of_a_light_help_can_fail() -> None:
    code = "import sys\nimport meshkit.cli.main\nimport torch\nprint('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "True\n", done.stderr


def test_version_is_that_of_the_project() -> None:
    assert meshkit("--version").stdout == f"meshkit {VERSION}\n"
    assert f'\nversion = "{VERSION}"\n' in (ROOT / "pyproject.toml").read_text()


def test_the_console_script_is_main() -> None:
    line = '[project.scripts]\nmeshkit = "meshkit.__main__:main"\n'
    assert line in (ROOT / "pyproject.toml").read_text()
    for script in entry_points(group="console_scripts", name="meshkit"):
        assert script.load() in (entry.main, main.main)  # an older installation names the second


@pytest.mark.parametrize(
    ("arguments", "last"),
    [
        ([], "meshkit: error: the following arguments are required: command"),
        (["doctor", "--what"], "meshkit: error: unrecognized arguments: --what"),
        (["doctor", "--js"], "meshkit: error: unrecognized arguments: --js"),
    ],
)
def test_misuse_is_two(arguments: list[str], last: str) -> None:
    done = meshkit(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == last


def test_an_unknown_command_is_misuse() -> None:
    done = meshkit("helo")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("meshkit: error: argument command: invalid")


# ---------------------------------------------------------------- dispatch, on a command of ours


def outcome(monkeypatch: pytest.MonkeyPatch, result: Result | BaseException) -> int:
    def run(_: Namespace) -> Result:
        if isinstance(result, BaseException):
            raise result
        return result

    command = Command("try", "try it", lambda _: None, run)
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


def test_an_interrupt_is_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr() == ("", "")


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        outcome(monkeypatch, ZeroDivisionError())


@pytest.mark.parametrize(
    ("answer", "code", "printed"),
    [
        (Result("yes"), 0, "yes\n"),
        (Result("no", ok=False), 1, "no\n"),
        (Result(""), 0, ""),
        (Result("h\u00f4te \u2713"), 0, "h\\xf4te \\u2713\n"),
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


def test_what_was_typed_is_taken_from_the_command_line_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["meshkit", "--version"])
    with pytest.raises(SystemExit) as left:
        main.main()
    assert left.value.code == 0
    assert capsys.readouterr().out == f"meshkit {VERSION}\n"


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
        "meshkit.cli.commands.bench",
        "numpy",
    ],
)
def test_ctrl_c_while_commands_are_imported_is_silent(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRESSED.format(module), "bench", "dp=2", "-n", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
