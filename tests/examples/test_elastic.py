"""A job that loses a node, or is resumed on other numbers of ranks: one curve of losses."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import meshkit
from examples import elastic
from tests.launchers.checks import clean_environ

SMALL = ["--dtype=float64", "--seq=16", "--dim=16", "--global-batch=8", "--micro-batch=1"]
SMALL += ["--save-every=5", "--log-every=5", "--timeout=30"]
STEPS, BATCH, EVERY = 80, 8, 5  # the latter two as in SMALL
LIVES = [(4, 20), (2, 45), (3, 60), (1, STEPS)]  # ranks, and up to which step
# In seconds. A node is taken for lost after interval x attempts; then the others wait for the last
# call to pass, as a new node may come.
TIMES = "join_timeout=60,last_call_timeout=10,keep_alive_interval=1,keep_alive_max_attempt=2"
# torchrun, once both are there: the first takes a second that is later than the last call for lost.
AGENT = """
import os, sys, time
from torch.distributed.run import main
folder = sys.argv.pop(1)
open(f"{folder}/{os.getpid()}.ready", "w").close()
while not os.path.exists(f"{folder}/go"):
    time.sleep(0.02)
main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lives")


def lives(folder: str, parts: list[tuple[int, int]]) -> list[float] | None:
    """One life after another, each on so many ranks up to so many steps; the losses at the end."""
    losses: list[float] | None = None
    for dp, steps in parts:
        args = elastic.parse([*SMALL, f"--steps={steps}", f"--save={folder}"])
        meshkit.init(seed=args.seed)
        with meshkit.build_mesh(dp=dp, sp=1, ranks=range(dp)) as mesh:
            losses = elastic.train(mesh, args, torch.device("cpu")) if mesh.inside else None
    return losses


def all_of(folder: str, parts: list[tuple[int, int]], steps: int) -> list[object]:
    """Return the losses of these lives, and those of one life of one rank."""
    for name in ("job", "alone"):
        Path(folder, name).mkdir(exist_ok=True)
    return [lives(f"{folder}/job", parts), lives(f"{folder}/alone", [(1, steps)])]


@pytest.fixture(scope="module")
def spawned(folder: Path) -> list[list[Any]]:
    """Return the losses of ``LIVES``, and of one life alone."""
    return meshkit.spawn(all_of, 4, (str(folder), LIVES, STEPS), timeout=120)


@pytest.fixture(scope="module")
def alone(spawned: list[list[Any]]) -> list[float]:
    return list(spawned[0][1])


def lines(folder: Path) -> list[dict[str, Any]]:
    """The log so far; a line that is still being written is left out."""
    log = folder / "log.jsonl"
    whole = log.read_text().split("\n")[:-1] if log.exists() else []
    return [json.loads(line) for line in whole]


def check_records(folder: Path, curve: list[float]) -> None:
    """Each step once, on its own samples; where one was done again, on the same ones."""
    for line in lines(folder):
        first = line["step"] * BATCH
        assert line["samples"] == list(range(first, first + BATCH)), line
        assert line["loss"] == pytest.approx(curve[line["step"]], rel=1e-9, abs=0)
    last = {line["step"]: line["loss"] for line in lines(folder)}
    assert list(last) == list(range(STEPS))
    kept = torch.load(folder / "checkpoint.pt", weights_only=True)["losses"]
    assert kept == list(last.values())  # what the weights went through


# ------------------------------------------------------------------ on other numbers of ranks


def test_resumed_on_other_numbers_of_ranks_the_curve_is_one(
    spawned: list[list[Any]], alone: list[float], folder: Path
) -> None:
    assert alone[-1] < alone[0] - 1  # it learns
    assert len(alone) == STEPS
    assert [row[0] is not None for row in spawned] == [True, False, False, False]
    assert spawned[0][0] == pytest.approx(alone, rel=1e-9, abs=0)
    check_records(folder / "job", alone)
    dp = [line["dp"] for line in lines(folder / "job")]
    assert dp == [4] * 20 + [2] * 25 + [3] * 15 + [1] * 20


def test_a_checkpoint_is_whole_whenever_its_writer_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, path = nn.Linear(2, 2), tmp_path / "checkpoint.pt"
    optimizer = torch.optim.SGD(plain.parameters())
    trainer: Any = SimpleNamespace(plain=plain, optimizer=optimizer, losses=[3.0])
    elastic.Trainer.save(trainer, path)

    def half(state: object, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    trainer.losses = [3.0, 2.0]
    with pytest.raises(KeyboardInterrupt):
        elastic.Trainer.save(trainer, path)
    assert torch.load(path, weights_only=True)["losses"] == [3.0]


# ---------------------------------------------------------------------------- under torchrun


def until(seconds: float, seen: Callable[[], Any]) -> Any:
    """Return the first result that is true, within the given seconds."""
    deadline = time.monotonic() + seconds
    while not (results := seen()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.01)
    return results


def running(folder: Path) -> dict[int, int]:
    """The processes of a job, and their parents: its folder is named in their command lines."""
    results = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder) in (path / "cmdline").read_text():
                results[int(path.name)] = int(
                    (path / "stat").read_text().rpartition(")")[2].split()[1]
                )
    return results


def kill(pids: Iterator[int] | list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def two_agents(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two of torchrun's agents, two workers each; the first hosts the store where agents meet."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-c", AGENT, str(folder), "--nnodes=1:2", "--nproc-per-node=2"]
    command += ["--max-restarts=2", "--monitor-interval=0.1", "--rdzv-backend=c10d"]
    command += [f"--rdzv-endpoint={endpoint}", f"--rdzv-id={folder.name}"]
    program = [elastic.__file__, *SMALL, f"--steps={STEPS}", f"--save={folder}"]
    agents = []
    try:
        for node in range(2):  # ordered by address: the first holds ranks 0 and 1
            own = [f"--rdzv-conf={TIMES},is_host={not node}", f"--local-addr=127.0.0.{node + 1}"]
            printed = (folder / f"agent{node}").open("w")
            with printed:
                agents.append(
                    subprocess.Popen(
                        [*command, *own, *program],
                        stdout=printed,
                        stderr=subprocess.STDOUT,
                        text=True,
                        env=clean_environ(),
                        start_new_session=True,
                    )
                )
        until(90, lambda: len([*folder.glob("*.ready")]) == 2)
        (folder / "go").touch()
        yield agents
    finally:
        kill(list(running(folder)))
        for agent in agents:
            agent.wait(10)
        until(10, lambda: not running(folder))


@pytest.mark.slow
def test_a_job_that_loses_a_node_goes_on_with_the_next_sample(
    tmp_path: Path, alone: list[float]
) -> None:
    folder = tmp_path / "job"
    with two_agents(folder) as (first, second):
        until(120, lambda: sum(line["dp"] == 4 for line in lines(folder)) > EVERY + 1)
        node = [second.pid, *(pid for pid, above in running(folder).items() if above == second.pid)]
        kill(node)  # workers have sessions of their own: alone they would train on
        began, before = time.monotonic(), len(lines(folder))
        assert second.wait(10) == -signal.SIGKILL
        assert len(node) == 3
        until(5, lambda: not running(folder).keys() & set(node))
        assert first.poll() is None
        until(80, lambda: lines(folder)[-1]["dp"] == 2)
        seconds = time.monotonic() - began
        assert first.wait(120) == 0, (folder / "agent0").read_text()
        assert not running(folder)
    old, new = ([line for line in lines(folder) if line["dp"] == dp] for dp in (4, 2))
    assert before <= len(old) < STEPS - EVERY  # it was lost in the middle
    assert [line["step"] for line in old] == list(range(len(old)))
    resumed = len(old) // EVERY * EVERY  # the steps in the last checkpoint
    assert [line["step"] for line in new] == list(range(resumed, STEPS))
    check_records(folder, alone)
    printed = (folder / "agent0").read_text()
    assert (
        f"from step {resumed}: global_batch 8 = micro_batch 1 x accumulation_steps 4 x dp 2"
        in printed
    )
    assert "CollectiveError: mesh.guard(timeout=30): " in printed
    assert seconds < 80
