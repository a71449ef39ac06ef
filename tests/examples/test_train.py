"""The trainer: one run of losses whatever the mesh, and a clean end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import meshkit
from examples import train
from examples.text import Windows

TRAIN = Path(train.__file__)
# every micro batch that divides the global batch of 8, over one process
ALONE = ["--micro-batch 1", "--micro-batch 2", "--micro-batch 4", "--micro-batch 8"]
TWO_HEADS = "--heads 2 --micro-batch 8"
TWO_HEADS_IN_A_RING = "--heads 2 --dp 1 --sp 4 --tp 2 --micro-batch 8 --attention ring"
MESHES_OF_FOUR = [
    "--dp 4 --micro-batch 1",
    "--dp 2 --sp 2 --micro-batch 2",
    "--dp 1 --tp 4 --micro-batch 8",
    "--dp 1 --sp 2 --tp 2 --micro-batch 8 --attention ring",
]
MESHES_OF_EIGHT = ["--dp 2 --sp 2 --tp 2 --micro-batch 4"]
Losses = dict[str, list[list[float]]]
SMALL = ["--dtype=float64", "--steps=3", "--seq=32", "--dim=32", "--global-batch=8"]


def train_rows(rows: Sequence[str]) -> dict[str, list[float]]:
    """Return the losses of each row of arguments, each in a job and a mesh of its own."""
    return {row: train.main([*SMALL, *row.split()]) for row in rows}


def losses_on(ranks: int, rows: Sequence[str]) -> Losses:
    """Return the losses of each row of arguments, rank by rank."""
    by_rank = meshkit.spawn(train_rows, ranks, (rows,), timeout=600)
    return {row: [losses[row] for losses in by_rank] for row in rows}


@pytest.fixture(scope="module")
def losses() -> Losses:
    """Train on one process, and on four and eight with each mesh."""
    alone = losses_on(1, [*ALONE, TWO_HEADS])
    of_four = losses_on(4, MESHES_OF_FOUR)
    return alone | of_four | losses_on(8, [*MESHES_OF_EIGHT, TWO_HEADS_IN_A_RING])


@pytest.fixture(scope="module")
def reference(losses: Losses) -> list[float]:
    """Return the losses of one process with one micro batch a step."""
    (alone,) = losses[ALONE[-1]]
    return alone


@pytest.mark.parametrize(
    ("arguments", "num_ranks"),
    [
        *((row, 1) for row in ALONE[:-1]),
        *((row, 4) for row in MESHES_OF_FOUR),
        *((row, 8) for row in MESHES_OF_EIGHT),
    ],
)
def test_the_losses_do_not_depend_on_the_mesh(
    losses: Losses, reference: list[float], arguments: str, num_ranks: int
) -> None:
    by_rank = losses[arguments]
    assert by_rank == [by_rank[0]] * num_ranks
    assert by_rank[0] == pytest.approx(reference, rel=1e-9, abs=0)
    assert reference[-1] < reference[0] - 1  # it learns


def test_a_ring_needs_no_heads_for_sp(losses: Losses) -> None:
    (alone,), ring = losses[TWO_HEADS], losses[TWO_HEADS_IN_A_RING]
    assert ring == [ring[0]] * 8
    assert ring[0] == pytest.approx(alone, rel=1e-9, abs=0)


# ------------------------------------------------------------------ the marks of the trainer


MARKED = ["... =tp -> ... *tp", "... +tp -> ... =tp"]  # every pattern of the trainer with * or =


def find_wrong_marks(attention: str) -> dict[str, str]:
    """Return the error of one step in ``checked`` for each pattern with one mark exchanged."""
    outcomes = {}
    with meshkit.build_mesh(dp=1, sp=2, tp=2) as mesh:
        for pattern in [*MARKED, *(wrong for right in MARKED for wrong in swap_marks(right))]:
            outcomes[pattern] = error_of_a_step(mesh, attention, pattern)
    return outcomes


def swap_marks(pattern: str) -> list[str]:
    """Return the patterns in which one mark is * instead of =, or = instead of *."""
    other = {"*": "=", "=": "*"}
    places = [place for place, letter in enumerate(pattern) if letter in other]
    return [pattern[:p] + other[pattern[p]] + pattern[p + 1 :] for p in places]


def error_of_a_step(mesh: meshkit.Mesh, attention: str, pattern: str) -> str:
    """Return the error of a step with this pattern for the one of its transition."""
    args = train.parse(["--sp=2", "--tp=2", "--layers=1", "--seq=8", f"--attention={attention}"])
    data = Windows(torch.arange(2000) % 251, args.seq)
    with exchange_pattern(pattern), mesh.checked():
        try:
            meshkit.init(seed=0)
            train.Trainer(mesh, args, data).step()
        except meshkit.SpecError as error:
            return str(error)
    return ""


@contextmanager
def exchange_pattern(pattern: str) -> Iterator[None]:
    """Give the redistributions of the trainer this pattern for the right one."""
    right = next(right for right in MARKED if pattern in (right, *swap_marks(right)))
    make = meshkit.Mesh.redistribution

    def exchanged(mesh: meshkit.Mesh, text: str, /, **options: Any) -> Any:
        return make(mesh, pattern if text == right else text, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meshkit.Mesh, "redistribution", exchanged, raising=True)
        yield


def test_a_wrong_mark_at_any_place_is_found_in_one_step() -> None:
    code = TRAIN.read_text() + TRAIN.with_name("attention.py").read_text()
    patterns = re.findall(r'"([^"\n]* -> [^"\n]*)"', code.partition('"""')[2].partition('"""')[2])
    assert {p for p in patterns if "=" in p or "*" in p} == {*MARKED}
    for outcomes in meshkit.spawn(find_wrong_marks, 4, ("ulysses",), timeout=120):
        assert [outcomes.pop(pattern) for pattern in MARKED] == ["", ""]
        assert len(outcomes) == 3
        for wrong, error in outcomes.items():
            assert "tp on the right" in error, (wrong, error)


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(TRAIN)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
        start_new_session=True,
    )


@pytest.mark.slow
def test_under_torchrun_it_prints_the_mesh_the_plan_and_what_it_learnt() -> None:
    job = torchrun("--dp", "1", "--sp", "2", "--steps", "30", "--seq", "32", "--dim", "32")
    printed = job.communicate(timeout=300)[0]
    assert job.returncode == 0, printed
    assert (
        "dp=1 sp=2 tp=1\n  sp=0  sp=1\n   [0]     1\n"
        "global_batch 32 = micro_batch 4 x accumulation_steps 8 x dp 1\n"
    ) in printed
    assert re.search(r"step    0  loss \d\.\d{4}  [\d,]+ tokens/s", printed)
    before, after = re.findall(r"held-out loss (\S+) -> (\S+)", printed)[0]
    assert float(after) < float(before) - 1


@pytest.mark.slow
def test_ctrl_c_ends_all_ranks_at_the_same_step() -> None:
    job = torchrun("--dp", "2", "--tp", "1", "--steps", "100000", "--seq", "32", "--dim", "32")
    assert job.stdout is not None
    lines: list[str] = []
    while not any(line.startswith("step   10") for line in lines):
        lines.append(job.stdout.readline())
        assert lines[-1], "".join(lines)
    os.killpg(job.pid, signal.SIGINT)  # what a terminal does on Ctrl-C
    rest = job.communicate(timeout=60)[0]
    assert "stopped by a signal, all ranks at the same step" in rest
    assert "held-out loss" in rest
    assert "[rank" not in rest, rest  # no traceback from a worker


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--heads 3 --tp 2", "h is 3, which is not a multiple of tp 2."),
        ("--seq 31 --sp 2", "31 is not a multiple of parts 2."),
    ],
)
def test_indivisible_sizes_raise(arguments: str, text: str) -> None:
    with pytest.raises(meshkit.SpawnError) as caught:
        meshkit.spawn(train.main, 4, (arguments.split(),), timeout=60)
    assert len(caught.value.errors) == 4
    assert all(text in str(error) for error in caught.value.errors.values())
