"""Run one function on local ranks, on one mesh after the other, in the same processes.

::

    parent  -- sizes of a mesh -->  rank 0 .. n-1     join a job of n ranks, build the mesh,
            <-- "ready" --                            run step(mesh)
            <-- tensors or failure --

A mesh of fewer ranks than there are leaves the others idle. After a step that raised or hung all
ranks are killed, and the next mesh gets new ones.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.random  # not on each rank
import torch

from ..errors import SpecError
from ..launch.init import init
from ..launch.join import shutdown
from ..launch.tensors import is_dtensor, plain
from ..launch.worker import (
    LONGEST,
    Context,
    EndedError,
    Surroundings,
    Worker,
    end_workers,
    fork_obstacle,
    fresh_context,
    start_worker,
)
from ..launch.world import free_port
from ..mesh.build_mesh import build_mesh
from ..mesh.mesh import Mesh
from ..redistribute import redistribution as _redistribution  # noqa: F401  # not on each rank
from ..text import name_ranks
from .causes import Array

Step = Callable[[Mesh], Mapping[str, Any]]
Values = dict[str, Array | None]

START = 120.0  # seconds for all ranks to join a job and build a mesh
GRACE = 2.0  # seconds for the other ranks to fail as well, once one has
SEED = 0
STACK = 0.3  # seconds in which a rank that hangs writes its stack
LIBRARIES = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])


class MeshJob(NamedTuple):
    """One mesh for one rank, with the surroundings that the step before may have changed."""

    sizes: dict[str, int]
    surroundings: Surroundings


class Fault(NamedTuple):
    """The end of a step that returned nothing on some ranks."""

    cause: str  # "raised" or "hung"
    lines: tuple[str, ...]


class Ranks:
    """Local processes that run a step, on one mesh after the other."""

    def __init__(self, step: Step, timeout: float) -> None:
        self._timeout = timeout
        self._context, self._payload = _choose_context(step)
        self._folder = Path(tempfile.mkdtemp(prefix="meshkit-compare-"))
        self._ranks: list[Worker] = []
        self._jobs = 0

    def run(self, sizes: Mapping[str, int], count: int) -> dict[int, Values] | Fault:
        """Return what the step returned on each rank of a mesh, or how it ended."""
        self._jobs += 1
        store, port = f"file://{self._folder}/store-{self._jobs}", free_port()
        for number in range(count):
            own = Surroundings.of_rank(number, count, store, port)
            if number == len(self._ranks):
                arguments = self._payload, str(self._stack_file(number))
                rank = start_worker(self._context, own, serve, *arguments, siblings=self._ranks)
                self._ranks.append(rank)
            with suppress(OSError):  # a rank that has ended; it does not answer
                self._ranks[number].pipe.send(MeshJob(dict(sizes), own))
        results, failures = self._receive(count)
        if len(results) == count:
            return results
        fault = self._describe(count, results, failures)
        end_workers(self._ranks)
        self._ranks.clear()
        return fault

    def close(self) -> None:
        """End all ranks."""
        end_workers(self._ranks, range(len(self._ranks)), GRACE)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _stack_file(self, number: int) -> Path:
        return self._folder / f"{number}.stack"

    def _receive(self, count: int) -> tuple[dict[int, Values], dict[int, str]]:
        """Return the results of ranks, and the failures in the order in which they came."""
        results: dict[int, Values] = {}
        failures: dict[int, str] = {}
        ready, deadline = 0, time.monotonic() + START
        while len(results) + len(failures) < count and time.monotonic() < deadline:
            ended = results.keys() | failures.keys()
            pipes = {r.pipe: n for n, r in enumerate(self._ranks[:count]) if n not in ended}
            for pipe in wait([*pipes], min(max(0.0, deadline - time.monotonic()), LONGEST)):
                number = pipes[pipe]  # type: ignore[index]
                try:
                    message = self._ranks[number].receive()
                except EndedError as error:
                    message = str(error)
                if message is None:
                    ready += 1
                    deadline = time.monotonic() + self._timeout if ready == count else deadline
                elif isinstance(message, str):
                    failures[number] = message
                    deadline = min(deadline, time.monotonic() + GRACE)
                else:
                    results[number] = message
        return results, failures

    def _describe(
        self, count: int, results: Mapping[int, Values], failures: Mapping[int, str]
    ) -> Fault:
        """Return the fault of a step: the rank that raised first, or where ranks wait."""
        if failures:
            lines = [f"rank {number} {text}" for number, text in failures.items()]
            if len({*failures.values()}) == 1:
                ranks = sorted(failures)
                lines = [f"{name_ranks(ranks)} {failures[ranks[0]]}"]
            return Fault("raised", tuple(line for text in lines for line in text.splitlines()))
        waiting = [number for number in range(count) if number not in results]
        for number in waiting:
            os.kill(cast(int, self._ranks[number].process.pid), signal.SIGUSR1)
        time.sleep(STACK)
        where = [f"rank {n} is {_read_stack(self._stack_file(n))}" for n in waiting]
        ended = f", {name_ranks(sorted(results))} did" if results else ""
        line = f"{name_ranks(waiting)} did not return within {self._timeout:g} s{ended}."
        return Fault("hung", (line, *where))


def _choose_context(step: Step) -> tuple[Context, Step | bytes]:
    """Return how ranks are started, and the step for them: a fork, or else a fresh process."""
    if not (obstacle := fork_obstacle()):
        return multiprocessing.get_context("fork"), step
    try:
        payload = pickle.dumps(step)
    except Exception as error:  # whatever the object raises
        raise SpecError(
            f"step cannot be sent to another process, and this one cannot be forked: {obstacle}.",
            fix="define step at the top level of a module, or call this in a new process.",
        ) from error
    return fresh_context(), payload


def serve(pipe: Connection, step: Step | bytes, stack_file: str) -> None:
    """Run the jobs of this rank, until the parent closes the pipe."""
    with open(stack_file, "w") as stack:
        faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
        while True:
            try:
                job = pipe.recv()  # by our own parent
            except EOFError:
                return shutdown()
            pipe.send(_run(step, job, pipe))


def _run(step: Step | bytes, job: MeshJob, pipe: Connection) -> Values | str:
    """Run a step on its mesh, and return its tensors, or the text of its error.

    The rank leaves the job when the next one begins, so that a rank that waits for it hangs.
    """
    shutdown()
    job.surroundings.enter(threads="1")
    torch.set_default_dtype(torch.float64)
    try:
        init(device="cpu", backend="gloo", seed=SEED)
        mesh = build_mesh(job.sizes)
        pipe.send(None)  # ready
        values = (pickle.loads(step) if isinstance(step, bytes) else step)(mesh)
        if not isinstance(values, Mapping):
            kind = type(values).__name__
            raise TypeError(f"step returned {kind}, not a mapping of names to tensors")
        return {str(name): _to_array(value) for name, value in values.items()}
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f"{f.filename}:{f.lineno} in {f.name}" for f in frames if _is_own(f.filename)]
        summary = f"raised {type(error).__name__}: {error}"
        return f"{summary}\nat {own[-1]}" if own else summary


def _to_array(value: Any) -> Array | None:  # noqa: ANN401
    """Return a tensor or a number as an array of float64 or complex128; a DTensor whole."""
    if value is None:
        return None
    with torch.no_grad():
        whole = value.full_tensor() if is_dtensor(value) else torch.as_tensor(value)
        dtype = torch.complex128 if whole.is_complex() else torch.float64
        return np.array(plain(whole.detach().to("cpu", dtype)).numpy())


def _is_own(file: str) -> bool:
    """Return whether a file is neither torch's nor ours nor Python's own."""
    return not file.startswith((*LIBRARIES, "<frozen")) and "/multiprocessing/" not in file


def _read_stack(file: Path) -> str:
    """Return the innermost line of the caller's code that faulthandler wrote into a file."""
    frames = [line.split('"') for line in file.read_text().splitlines() if '"' in line]
    own = [f"at {f[1]}:{f[2].replace(', line ', '')}" for f in frames if _is_own(f[1])]
    return own[0] if own else "at an unknown line"
