"""The pages of docs/: their Python runs and prints the text below it, their tables are true."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import meshkit
from meshkit.cli import terminal
from meshkit.cli.main import main
from meshkit.core.redistribute.pattern import parse_pattern
from tests.core.redistribute.test_pattern import USES
from tests.core.redistribute.test_transitions import TABLE

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "redistribute.md").read_text()
PAGES = PAGE + (ROOT / "docs" / "recover.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGES, re.MULTILINE | re.DOTALL)
PAIRS = [(code, text) for (kind, code), (_, text) in itertools.pairwise(BLOCKS) if kind == "python"]


@pytest.mark.parametrize(("code", "output"), PAIRS)
def test_python_blocks_print_what_follows_them(tmp_path: Path, code: str, output: str) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == output
    assert len(PAIRS) == 3


def test_the_command_prints_the_plan_of_the_first_block(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(terminal, "get_line_characters", lambda: terminal.LINES)
    command = re.search(r"`meshkit (move .*?)`", PAGE, re.DOTALL)
    assert command is not None
    assert main(shlex.split(command[1])) == 0
    assert capsys.readouterr().out == PAIRS[0][1]


def test_the_table_has_the_twenty_uses() -> None:
    patterns = re.findall(r"^\| `(.* -> .*?)` \|", PAGE, re.MULTILINE)
    assert sorted(patterns) == sorted(USES)
    axes = {"shard": 2, "rep": 2, "ep": 2, "sp": 2, "cp": 2, "tp": 2, "dp": 2, "pp": 2}
    for text in patterns:
        names = [dim.name for dim in parse_pattern(text.replace("...", "b")).left.dims]
        plan = meshkit.plan_redistribution(
            axes, text.replace("...", "b"), **dict.fromkeys(names, 8)
        )
        assert plan.received == plan.bound
        assert plan.backward is not None


def test_the_table_of_transitions_is_the_tested_one() -> None:
    lines = re.search(r"^\| from, to .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert lines is not None
    rows = [line.strip("| \n").split(" | ") for line in lines[0].strip().splitlines()]
    symbols = [cell.strip("`") for cell in rows[0][1:]]
    shown = {
        (row[0].strip("`"), symbol): cell
        for row in rows[2:]
        for symbol, cell in zip(symbols, row[1:], strict=True)
    }
    expected = {cell: _short(text) for cell, text in TABLE.items()}
    assert shown == expected


def _short(text: str) -> str:
    """Return forward and backward of a cell; a reduce also clears the tensor on other ranks."""
    return ", ".join(side.replace("reduce, keep on one", "reduce") for side in text.split(" | "))
