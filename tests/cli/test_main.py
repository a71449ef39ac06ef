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
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from meshkit import LaunchError, SpecError
from meshkit import __main__ as entry
from meshkit.cli import main
from meshkit.cli.command import Command, Result
from meshkit.cli.commands import bench, check, hello
from meshkit.cli.commands.hello import Greeting
from meshkit.core.version import VERSION
from tests.bench.results.example_runs import CLEAN
from tests.core.report.example_reports import REPORT

ROOT = Path(__file__).parents[2]
GREETING = Greeting(0, 1, 0, "a", "cpu", "gloo", "spawn", 310, ok=True)


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
        assert f"  {name:10}  {command.help}\n" in out
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


def test_the_console_script_is_main() -> None:
    line = '[project.scripts]\nmeshkit = "meshkit.__main__:main"\n'
    assert line in (ROOT / "pyproject.toml").read_text()
    for script in entry_points(group="console_scripts", name="meshkit"):
        assert script.load() in (entry.main, main.main)  # an older installation names the second


# ---------------------------------------------------------------- misuse

COMMANDS = ", ".join(main.COMMANDS)
MISUSE = {
    "helo -n 2": (
        f"there is no command 'helo'.\n  The commands are {COMMANDS}.\n  Fix: meshkit hello -n 2\n"
    ),
    "xyz": "there is no command 'xyz'.\n  Fix: meshkit help lists the commands.\n",
    "dp=4 tp=2": (
        f"there is no command 'dp=4'.\n  The commands are {COMMANDS}.\n"
        "  Fix: meshkit plan dp=4 tp=2\n"
    ),
    "doctor --js": "there is no option --js.\n  Fix: meshkit doctor --json\n",
    "doctor --zzzz": (
        "there is no option --zzzz.\n  Fix: meshkit help doctor lists the options.\n"
    ),
    "plan dp=4 --node=2": "there is no option --node.\n  Fix: meshkit plan dp=4 --nodes=2\n",
    "doctor now": (
        "'now' is no option, and meshkit doctor takes no other words.\n  Fix: meshkit doctor\n"
    ),
    "plan": (
        "the following arguments are required: AXIS=SIZE.\n"
        "  Fix: for example meshkit plan dp=4 sp=2 --nodes 2\n"
    ),
    "plan dp=4 --nodes": (
        "--nodes: expected one argument.\n  Fix: for example meshkit plan dp=4 sp=2 --nodes 2\n"
    ),
    "help plam": (
        f"there is no command 'plam'.\n  The commands are {COMMANDS}.\n  Fix: meshkit plan --help\n"
    ),
}


@pytest.mark.parametrize("typed", MISUSE)
def test_misuse_has_one_format_and_its_fix_can_be_typed(
    typed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main.main(typed.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"meshkit {typed}: {MISUSE[typed]}")
    fix = err.rpartition("Fix: ")[2].rpartition("meshkit ")[2].partition(" lists")[0]
    fix = fix.strip().removesuffix(".")
    if fix.startswith("hello"):
        monkeypatch.setattr(hello, "_greet_locally", lambda _: [GREETING])
    assert main.main(fix.split()) == 0, capsys.readouterr().err


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
    assert error["fix"].startswith("start 3 ranks")
    assert main.main(["--json", "plan", "dp=4"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["fix"] == "meshkit plan dp=4 --json"
    assert main.main(["plan", "--json", "--node", "2"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["fix"] == "meshkit plan --json --nodes 2"


# ---------------------------------------------------------------- sizes in every spelling


@pytest.mark.parametrize(
    "sizes", ["dp=4 tp=2", "dp=4,tp=2", "'dp=4 tp=2'", "--dp 4 --tp 2", "--dp=4 tp=2"]
)
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


@pytest.mark.parametrize(
    "words",
    [
        "'dp=4 sp=2' 'dp=2 sp=2 tp=2'",
        "dp=4,sp=2 dp=2,sp=2,tp=2",
        "dp=4 sp=2 dp=2 sp=2 tp=2",
        "--dp 4 --sp 2 --dp 2 --sp 2 --tp 2",
    ],
)
def test_two_grids_in_every_spelling(
    words: str, answer: Callable[[str], tuple[int, str, str]]
) -> None:
    expected = answer("diff 'dp=4 sp=2' 'dp=2 sp=2 tp=2'")
    assert expected[0] == 0
    assert answer(f"diff {words}") == expected


def test_grids_that_could_be_split_in_two_ways_are_refused_with_both(
    answer: Callable[[str], tuple[int, str, str]],
) -> None:
    code, _, err = answer("diff dp=8 tp=2 dp=4")
    assert code == 2
    assert err.splitlines()[-1] == (
        '  Fix: meshkit diff "dp=8" "tp=2 dp=4", or meshkit diff "dp=8 tp=2" "dp=4".'
    )
    assert answer('diff "dp=8 tp=2" "dp=4"')[0] == 0
    assert answer("diff dp=8")[0] == 2


@pytest.mark.parametrize(
    "command",
    [
        "plan pp=2 dp=16 sp=2 tp=8 --nodes 64 --global-batch 1024 --micro-batch 4 --place",
        "plan dp=2 tp=16 --nodes 16",
        "explain 5 dp=4 sp=2 --seed 3 --seq 64 --global-batch 64 --micro-batch 4",
        "explain --all dp=4 sp=2 tp=2 --nodes 2",
        "diff dp=64,tp=8 dp=32,tp=8",
        "move pp=2 dp=4 tp=2 'o/dp/tp i -> o/tp i/dp' o=4096 i=4096",
        "search --model examples/llama-3-8b.json --world-size 1024 --nodes 128 "
        "--global-batch 1024 --seq 8192",
        "check dp=2 -n 2",
        "bench dp=2 sp=2 -n 4",
        "hello -n 2",
        "doctor",
        "help",
    ],
)
def test_no_line_is_longer_than_60_columns(
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(check, "_check_locally", lambda *_: REPORT)
    monkeypatch.setattr(bench, "_measure_locally", lambda *_: (0, CLEAN))
    monkeypatch.setattr(hello, "_greet_locally", lambda _: [GREETING])
    main.main(shlex.split(command))
    out = capsys.readouterr().out
    assert out
    commands = [line for line in out.splitlines() if "Fix:" in line or line.startswith("mesh = ")]
    longest = [line for line in out.splitlines() if len(line) > 60 and line not in commands]
    assert longest == []


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
    assert main.main() == 0
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
