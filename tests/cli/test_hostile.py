"""Two hundred hostile command lines: each ends soon, with one message, and a fix that is right."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshkit.cli import main, ranks
from meshkit.launch import store

NUMBERS = (
    "0",
    "-1",
    "-5",
    "1.5",
    "1e9",
    "nan",
    "inf",
    "0x10",
    "١٢",
    "",
    " ",
    "9" * 40,
    "2**8",
    "two",
)
CONTROL = ("\x1b[31m", "a\x00b", "\x07", "\u202e4", "\r\n", "\x9b2J", "\ufeff8", "a\tb")
SIZES = (
    "dp=9223372036854775807",
    "dp=2147483647 tp=2147483647",
    "dp=99999999999999999999",
    "dp=-2",
)
AXES = ("=4", "dp=", "dp==4", "dp=4=4", "dp=4 dp=2", "4", "dp", "dp:4", "dp=4,", ",", "'dp tp=2'")
AXES += ("dp=2 dp_shard=2", "a-b=2", "ranks=2", "timeout=9", "-dp 4", "--dp=4", "dp\uff1d4", "é=2")
PLAN = ("--nodes", "--global-batch", "--micro-batch", "--accumulation-steps", "--world-size")
TEXTS = ("--order=dp-", "--order=xx", "--data=", "--data=tp,zz", "--groups=", "--groups='dp dp'")
MISSING = "/nonexistent/file"
OPTIONS = {
    "doctor --timeout=": ("0", "-1", "nan", "x", ""),
    "store --port=": ("-1", "65536", "1e3", "x", ""),
    "bench dp=2 -n 2 --sizes=": ("", ":", "9:1", "1K:2K:0", "x"),
    "bench dp=2 -n 2 --ops=": ("", ",", "all_reduc", "all_reduce,,x"),
    "bench dp=2 -n 2 --iters=": ("0", "-1", "x", "1e99"),
    "rehearse --world-size=": ("", "0", "-1", "x", "9" * 30),
    "rehearse --world-size=8 ": ("", MISSING, "--nodes=0 train.py", "--nodes=3 train.py"),
    "move tp=2 ": ("", "->", "s -> ", "s/xx -> s", "s/tp", "((("),
    "move tp=2 's/tp -> s' ": ("s=0", "s=-1", "s=1.5", "s=", "q=4", "s=3"),
}
OTHERS = (
    *("search", f"plan dp=4 --hosts {MISSING}", "plan dp=4 --hosts /", "plan dp=4 --html /"),
    *("plan dp=4 --hosts /dev/zero", "plan dp=8 --hosts /dev/null", "plan --json dp=0"),
    *(f"plan dp=4 --html {MISSING}", "plan dp=2000000 --nodes 2000000", "plan dp=4 --nodes 3"),
    *("plan dp=4 --nodes 2000000", "move dp=4 'o/dp -> o' o=8 --dtype=int3"),
    *("nosuch", "", "help nosuch", "--help --json", "help help help", "plan --nosuch", "-"),
)


def lines() -> Iterator[str]:
    """Yield hostile lines of every command."""
    for command in ("plan", "explain 0", "check -n 2", "bench -n 2"):
        yield from (f"{command} {words}" for words in (*SIZES, *AXES))
    for option in PLAN:
        yield from (f"plan dp=4 {option}={shlex.quote(number)}" for number in NUMBERS)
    yield from (f"plan dp=4 tp=2 {words}" for words in TEXTS)
    yield from (f"{command} {word!r}" for word in CONTROL for command in ("plan", "store --port"))
    yield from (f"explain {shlex.quote(number)} dp=4" for number in NUMBERS)
    yield from (f"hello -n={shlex.quote(number)}" for number in NUMBERS)
    for option, texts in OPTIONS.items():
        yield from (f"{option}{shlex.quote(text)}" for text in texts)
    model = "search --world-size 8 --nodes 1 --global-batch 8 --seq 128 --model"
    yield from (f"{model} {path}" for path in (MISSING, "/", "/dev/null", "/etc/hostname"))
    yield from OTHERS


LINES = [*lines()]


def started(*_: object, **__: object) -> None:
    raise AssertionError("a hostile line started ranks or a store")


def test_there_are_two_hundred() -> None:
    assert len({*LINES}) >= 200
    assert {line.split()[0] for line in LINES if line} >= {*main.COMMANDS}


@pytest.mark.parametrize("line", LINES)
def test_a_hostile_line_is_one_message(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ranks, "spawn_ranks", started)
    monkeypatch.setattr(store, "serve_store", started)
    began = time.process_time()
    code = main.main(words(line))
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert time.process_time() - began < 2
    assert code in (0, 1, 2), code
    assert "Traceback" not in text
    assert all(c.isprintable() or c == "\n" for c in text), repr(text)
    if code == 2:
        assert printed.err.count("Fix:") <= 1, text
        check_fix(text)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".html"]


def words(line: str) -> list[str]:
    """Return the words of a line; control characters are written as Python writes them."""
    if "\\" in line or any(not c.isprintable() for c in line):
        command, _, word = line.partition("'")
        return [*command.split(), word.rstrip("'").encode().decode("unicode_escape")]
    return shlex.split(line)


def check_fix(text: str) -> None:
    """Check that a line that a fix types in full is no misuse itself."""
    for fix in (line.partition("Fix:")[2].strip() for line in text.splitlines() if "Fix:" in line):
        assert fix
        typed = fix.removesuffix(".")
        if typed.startswith(("meshkit plan", "meshkit explain", "meshkit move")):
            assert main.main(shlex.split(typed)[1:]) != 2, fix
