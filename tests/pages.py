"""Run the fenced blocks of the README and of docs/, and compare what they print.

These blocks run, by their fence:

    ```python                                         a program of its own; the next text block is
                                                      its output
    ```python title="train.py"                        a file, which a command below it uses
    ```python title="on each rank of build_mesh(dp=2, sp=2)"
                                                      code on every rank, with ``mesh`` given, and
                                                      the names of earlier blocks; rank 0 prints
    ```console                                        commands behind ``$``, each with its output

A block whose title is a file of the checkout, ``examples/moe.py``, is the text of that file, so
that the page is whole where it is read as plain Markdown. In an output, ``...`` matches anything.
Other fences (sh, text, yaml) are shown and do not run.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import itertools
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import pytest

import meshkit
from meshkit.cli import main as terminal
from meshkit.cli.main import main

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r'^( *)```(\w+)(?: title="([^"]*)")?[^\n]*\n(.*?)^\1```$', re.M | re.S)
ON_RANKS = "on each rank of "
RANKS = 4
NUMBERS = itertools.count()
TORCHRUN = re.compile(r"torchrun --nproc-per-node (\d+) (.+)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its title, and its text."""

    kind: str
    title: str
    body: str
    start: int  # of the body in the page
    end: int
    gap: str  # the text between the block before it and this one


@dataclass(frozen=True)
class Output:
    """An output as a page shows it, and as its code printed it."""

    shown: str
    printed: str
    start: int
    end: int

    @property
    def agrees(self) -> bool:
        """Whether the two are equal, where ``...`` matches anything."""
        return doctest.OutputChecker().check_output(self.shown, self.printed, doctest.ELLIPSIS)


def read_blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page in their order."""
    blocks, last = [], 0
    for m in FENCE.finditer(text):
        gap = text[last : m.start()]
        blocks.append(Block(m[2], m[3] or "", m[4], m.start(4), m.end(4), gap))
        last = m.end()
    return blocks


def read_programs(path: Path) -> list[Output]:
    """Return each program of examples/ as a page shows it, and as its file has it."""
    return [
        Output(block.body, (ROOT / block.title).read_text(), block.start, block.end)
        for block in read_blocks(path.read_text())
        if block.title.startswith("examples/")
    ]


def run_page(path: Path) -> list[Output]:
    """Run all blocks of a page; return each output that it shows."""
    blocks = read_blocks(path.read_text())
    outputs: list[Output] = []
    with tempfile.TemporaryDirectory() as folder:
        for block in blocks:
            if block.kind == "python" and block.title.endswith(".py"):
                Path(folder, Path(block.title).name).write_text(block.body)
        for block, after in zip(blocks, [*blocks, None][1:], strict=True):
            if block.kind == "python" and not block.title:
                outputs += _compare(run_script(block.body), after)
            if block.kind == "console":
                outputs += run_commands(block, folder)
    for title in dict.fromkeys(b.title for b in blocks if b.title.startswith(ON_RANKS)):
        outputs += _run_on_ranks(title, blocks)
    return outputs


def _is_output(block: Block | None) -> TypeGuard[Block]:
    """Return whether a block shows the output of the one directly above it."""
    return block is not None and block.kind == "text" and not block.gap.strip()


def _compare(printed: str, after: Block | None) -> list[Output]:
    """Return the output of a program; without a text block behind it, it prints nothing."""
    if not _is_output(after):
        assert printed == "", f"no text block shows this output:\n{printed}"
        return []
    return [Output(after.body, printed, after.start, after.end)]


def run_script(code: str) -> str:
    """Run a program in this process; return what it prints.

    Ranks that it starts import it from a file as a module, as they would import ``__main__``.
    """
    name = f"example_{next(NUMBERS)}"
    module = types.ModuleType(name)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        Path(folder, f"{name}.py").write_text(code)
        patch.syspath_prepend(folder)
        patch.setitem(sys.modules, name, module)
        program = compile(code.replace('"__main__"', f'"{name}"'), name, "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(program, vars(module))
        return printed.getvalue()


def _run(command: list[str], folder: str) -> str:
    """Run a command that succeeds and writes nothing to stderr; return its stdout."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=folder, env=environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_commands(block: Block, folder: str) -> list[Output]:
    """Run the commands of a console block; return the output of each."""
    outputs = []
    parts = re.finditer(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block.body, re.M)
    for part in parts:
        printed = run_command(part[1].replace("\\\n", ""), folder)
        offset = block.start
        outputs.append(Output(part[2], printed, offset + part.start(2), offset + part.end(2)))
    return outputs


def run_command(command: str, folder: str) -> str:
    """Run one command of a page in the folder of its files; return what it prints.

    ``torchrun`` starts the ranks from this process, which has imported torch. The README's trainer
    runs under the real one.
    """
    torchrun = TORCHRUN.fullmatch(command)
    if torchrun:
        args = (folder, shlex.split(torchrun[2]))
        return "".join(meshkit.spawn(run_program, int(torchrun[1]), args, timeout=300))
    program, *args = shlex.split(command)
    if program == "python":
        return _run([sys.executable, *args], folder)
    assert program == "meshkit", f"the tests cannot run: {command}"
    printed = io.TextIOWrapper(io.BytesIO(), "utf-8")
    both = contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed)
    with pytest.MonkeyPatch.context() as patch, both[0], both[1]:
        patch.chdir(folder if "-o" in args else ROOT)  # where it writes, or where examples/ is
        patch.setenv("COLUMNS", "100")
        patch.setattr(terminal, "get_line_characters", lambda: terminal.LINES)
        main(args)
        printed.seek(0)
        return printed.read()


def run_program(folder: str, argv: list[str]) -> str:
    """Run a file on this rank; return what it prints."""
    os.chdir(folder)
    sys.argv, sys.path[0] = argv, folder
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        runpy.run_path(argv[0], run_name="__main__")
    return printed.getvalue()


def _run_on_ranks(title: str, blocks: list[Block]) -> list[Output]:
    """Run the blocks of one title in one job; return the output of each on rank 0."""
    codes, places = [], []
    for block, after in zip(blocks, [*blocks, None][1:], strict=True):
        if block.title == title:
            codes.append(block.body)
            places.append(after if _is_output(after) else None)
    with tempfile.TemporaryDirectory() as folder:
        job = title.removeprefix(ON_RANKS), codes, folder
        printed = meshkit.spawn(run_on_rank, RANKS, job, timeout=300)
    return [
        out for text, place in zip(printed[0], places, strict=True) for out in _compare(text, place)
    ]


def run_on_rank(call: str, codes: list[str], folder: str) -> list[str]:
    """Run blocks in one namespace and a folder on this rank; return what each prints."""
    import torch
    import torch.distributed as dist

    os.chdir(folder)
    torch.manual_seed(0)
    names: dict[str, Any] = {"meshkit": meshkit, "torch": torch, "dist": dist}
    texts = []
    with eval(call, vars(meshkit) | {"build_mesh": meshkit.build_mesh}) as mesh:
        names["mesh"] = mesh
        for number, code in enumerate(codes):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(code, f"block {number}", "exec"), names)
            texts.append(printed.getvalue() if mesh.rank == 0 else "")
    return texts


def rewrite(path: Path, outputs: list[Output]) -> None:
    """Write the printed outputs into a page, where they differ from the shown ones."""
    text = path.read_text()
    for output in sorted(outputs, key=lambda o: -o.start):
        if not output.agrees:
            text = text[: output.start] + output.printed + text[output.end :]
    path.write_text(text)
