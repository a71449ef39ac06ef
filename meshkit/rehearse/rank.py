"""Play one rank of a rehearsal in this process: its environment, its world, its program."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..launch.job import Job, Membership, set_current_job
from ..launch.judges import Process
from ..launch.tensors import is_dtensor
from ..launch.times import ARRIVAL
from ..launch.torch_rehearsal import BACKEND, LiveBytes, allow_meta_training
from ..launch.worker import Surroundings, replace_environment, sendable_error
from ..launch.world import LOOPBACK_HOST, World
from .record import Trace
from .recorder import LIBRARIES, PACKAGE, Key, Payloads, RecordedAgreement, Recorder, Shared
from .recording import start_recording

PORT = 29500  # MASTER_PORT of the ranks; nobody listens


class RehearsalRequest(NamedTuple):
    """The program of every rank, and the world in which it runs."""

    job: bytes  # fn and args, pickled
    world_size: int
    nodes: int
    device: str
    surroundings: Surroundings  # of a rank: those of the caller, with the variables of torchrun


class PlayedRank(NamedTuple):
    """The outcome of one rank."""

    trace: Trace
    error: BaseException | None
    line: str  # of the program at which it raised
    sent: Payloads
    missing: set[Key]  # messages that no played rank had sent
    wanted: set[int]  # ranks that would send some of them
    shared: Payloads  # values that the rank has passed to collectives
    modules: list[str]  # libraries that the rank has imported


def play_rank(
    pipe: Connection, request: RehearsalRequest, rank: int, known: Payloads, shared: Shared
) -> None:
    """Play one rank in this process, send its outcome, and end."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(2 if rank == 0 else quiet, 1)
    os.dup2(2 if rank == 0 else quiet, 2)
    before = {*sys.modules}
    trace, line = Trace(rank), ""
    error: BaseException | None = None
    recorder = Recorder(trace, known, known=shared)
    try:
        _set_up_rank(request, rank, recorder)
        fn, args = pickle.loads(request.job)  # sent by our own parent
        with LiveBytes(trace.memory) if request.device == "meta" else nullcontext():
            fn(*args)
    except SystemExit as exit:
        error = None if exit.code in (None, 0) else RuntimeError(f"SystemExit: {exit.code}")
    except BaseException as raised:  # a KeyboardInterrupt is an outcome too
        error = raised
    if dist.is_initialized():
        recorder.count_groups(dist.get_pg_count())
    if error is not None:
        trace.has_ended = False
        line = _last_line(error)
        error = sendable_error(error)
    new = [name for name in {*sys.modules} - before if _is_library(sys.modules[name])]
    sys.stdout.flush()
    sys.stderr.flush()
    passed = recorder.sent, recorder.missing, recorder.wanted, recorder.shared
    pipe.send_bytes(pickle.dumps(PlayedRank(trace, error, line, *passed, new)))
    os._exit(0)  # without the destructors of torch


def _set_up_rank(request: RehearsalRequest, rank: int, recorder: Recorder) -> None:
    """Make this process a rank of the rehearsed world, as torchrun would start it."""
    size, local_size = request.world_size, request.world_size // request.nodes
    node, local_rank = divmod(rank, local_size)
    environ = {
        **request.surroundings.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": str(node),
    }
    environ.pop("MESHKIT_SPAWN")
    replace_environment(environ)
    if request.nodes > 1:
        _name_host(f"node{node}")
    start_recording(recorder, size)
    device = torch.device(request.device)
    if device.type == "meta":
        allow_meta_training()
        torch.set_default_device(device)
    world = World(
        *(rank, size, local_rank, local_size, node, request.nodes, LOOPBACK_HOST, PORT),
        launcher="rehearsal",
        device=device,
        backend=BACKEND,
        sources={"world_size": "world_size"},
    )
    hosts = processes(size, local_size)
    membership = Membership(0, range(size), size)
    agreements = partial(RecordedAgreement, recorder)
    set_current_job(Job(world, None, None, ARRIVAL, membership, known=hosts, rehearsed=agreements))
    register_optimizer_step_post_hook(partial(_measure, recorder.trace.memory, {}))


def _name_host(name: str) -> None:
    """Let this process have a host name of its own, which resolves as the real one."""
    real = socket.gethostname()

    def resolve(call: Callable[..., object], host: object, *args: object, **more: object) -> object:
        return call(real if host == name else host, *args, **more)

    for function in ("gethostbyname", "gethostbyname_ex", "gethostbyaddr", "getaddrinfo"):
        setattr(socket, function, partial(resolve, getattr(socket, function)))
    socket.gethostname = lambda: name


@cache
def processes(world_size: int, local_size: int) -> dict[int, Process]:
    """Return the process of each rank. The stage makes them once for all ranks."""
    nodes = [f"node{rank // local_size}" for rank in range(world_size)]
    return {rank: Process(node, rank, node, "", "") for rank, node in enumerate(nodes)}


def _measure(memory: dict[str, int], sizes: dict[int, dict[str, int]], *call: Any) -> None:  # noqa: ANN401
    """Keep the bytes that a rank holds after a step of an optimizer."""
    optimizer = call[0]
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    state = (value for entry in optimizer.state.values() for value in entry.values())
    sizes[id(optimizer)] = {
        "parameters": sum(map(_num_bytes, weights)),
        "gradients": sum(_num_bytes(weight.grad) for weight in weights),
        "optimizer state": sum(map(_num_bytes, state)),
    }
    for kind in ("parameters", "gradients", "optimizer state"):
        memory[kind] = max(memory.get(kind, 0), sum(each[kind] for each in sizes.values()))


def _num_bytes(value: object) -> int:
    if not isinstance(value, torch.Tensor):
        return 0
    own = value.to_local() if is_dtensor(value) else value
    return int(own.numel() * own.element_size())


def _is_library(module: object) -> bool:
    file = str(getattr(module, "__file__", None) or "")
    return file.startswith((*LIBRARIES, PACKAGE))


def _last_line(error: BaseException) -> str:
    """Return the last line of the program in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(LIBRARIES)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
