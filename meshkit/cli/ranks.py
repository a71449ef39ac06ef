"""Options, device, deadline and errors of a command that runs ranks.

The command starts the ranks on this machine, or a launcher has started them.

``meshkit check``: build a mesh of real ranks, check each of its groups, and report the times.

``meshkit hello``: every rank reports itself, and one all-reduce checks that all took part.

``meshkit store``: host the store of jobs, so that it outlives every rank.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from ..core.call import drop_none
from ..core.errors import CALL, LaunchError, MeshkitError, SpawnError, SpecError
from ..core.group_plan import GroupPlan
from ..core.layout import Layout
from ..core.report import CheckReport
from ..core.sizes import infer_sizes, ordered_sizes
from ..core.text import count_noun, format_ranks, wrap_lines
from ..launch.detect import detect
from ..launch.progress import Progress, show_progress
from .main import Command
from .main import Result as Result_
from .options import (
    SIZES_HELP,
    add_groups,
    add_order,
    read_axis_sizes,
    read_count,
    read_integer,
    read_seconds,
)

ENDING = 10.0  # seconds beyond the time limit of a command before its ranks are killed

Result = TypeVar("Result")


def add_mesh(parser: ArgumentParser) -> None:
    """Add the sizes, ``--order`` and the options of :func:`add_ranks`."""
    help = f"{SIZES_HELP}; one size can be -1"
    parser.add_argument("words", nargs="+", metavar="AXIS=SIZE", help=help)
    add_order(parser)
    add_ranks(parser)


def add_ranks(parser: ArgumentParser) -> None:
    """Add the options ``-n``, ``--device`` and ``--timeout``."""
    help = "start N ranks on this machine; without it, this process is a rank of its launcher"
    parser.add_argument("-n", "--world-size", dest="n", type=read_count, metavar="N", help=help)
    help = "cpu, cuda, ... (default: the accelerator, or the cpu if accelerators are fewer than N)"
    parser.add_argument("--device", help=help)
    help = "how long a rank waits for others, and how long a collective may take (default 60)"
    parser.add_argument("--timeout", type=read_seconds, default=60.0, metavar="SECONDS", help=help)


def check_launched(sizes: Mapping[str, int]) -> None:
    """Refuse a mesh of several ranks in a single process without a launcher."""
    needed = math.prod(size for size in sizes.values() if size != -1)
    if needed > 1 and detect().launcher == "single":
        fix = f"-n {needed}, which starts them; or run it under a launcher."
        summary = f"{CALL} needs {count_noun(needed, 'rank')}, and this is a single process."
        raise SpecError(summary, fix=fix, sizes=dict(sizes), world_size=1)


def choose_shared_device(device: str | None) -> str | None:
    """Return the device of local ranks: the cpu if there are fewer accelerators than ranks."""
    return "cpu" if device is None and _has_too_few(detect().world_size) else device


def uses_cpu(device: str | None, ranks: int) -> bool:
    """Return whether ranks on this machine compute on the cpu."""
    from ..launch.device import accelerator

    if device is not None:
        return device.partition(":")[0] == "cpu"
    return not accelerator() or _has_too_few(ranks)


def _has_too_few(ranks: int) -> bool:
    """Return whether this machine has accelerators, but fewer than ranks."""
    import torch

    from ..launch.device import accelerator, visible_devices

    kind = accelerator()
    return bool(kind) and visible_devices(torch.device(str(kind))) < ranks


def rank_0_progress(title: str) -> AbstractContextManager[object]:
    """Return a context that shows progress on rank 0 of a launcher, and nothing elsewhere."""
    if detect().rank:
        return nullcontext()
    progress = Progress(title, sys.stderr)
    progress.state = f"waiting for {count_noun(detect().world_size, 'rank')}"
    return show_progress(progress)


@contextmanager
def torch_errors(task: str) -> Iterator[None]:
    """Raise a LaunchError in place of a RuntimeError of torch."""
    try:
        yield
    except MeshkitError:
        raise
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        fix = "run meshkit doctor on the machines of the job."
        raise LaunchError(f"{task} failed.", line, fix=fix) from error


def spawn_ranks(
    function: Callable[..., Result],
    n: int,
    args: tuple[Any, ...],
    *,
    device: str | None,
    timeout: float,
    smaller: str = "",
    title: str = "",
) -> list[Result]:
    """Start ``n`` ranks on this machine, run a function on each, and return the results.

    The title begins the lines of progress; without one there are none.
    """
    from ..launch.spawn import start_ranks

    try:
        return start_ranks(function, n, args, timeout=timeout, title=title)
    except SpawnError as error:
        raise describe_failure(n, error, device, smaller) from error


def describe_failure(
    n: int, error: SpawnError, device: str | None, smaller: str = ""
) -> SpawnError:
    """Return an error with the summary, evidence and fix of the rank that failed first."""
    cause = error.__cause__
    first = next((rank for rank, other in error.errors.items() if other is cause), 0)
    others = sorted(error.errors.keys() - {first})
    also = f"; also failed: {format_ranks(others)}" if others else ""
    return SpawnError(
        f"rank {first} of {n} failed first{also}.",
        *_evidence(cause),
        fix=_fix(cause, n, device, smaller),
        errors=error.errors,
    )


def _evidence(cause: BaseException | None) -> list[str]:
    """Return the type and the text of an error without its fix, in lines."""
    lines = str(cause).splitlines()
    if isinstance(cause, MeshkitError):
        lines = [cause.headline, *cause.evidence]
    return [f"{type(cause).__name__}: {lines[0] if lines else ''}", *map(str.strip, lines[1:])]


def _fix(cause: BaseException | None, n: int, device: str | None, smaller: str) -> str:
    if isinstance(cause, MeshkitError):
        return cause.fix_text
    options = [smaller] * bool(smaller) + ["--device cpu"] * (not uses_cpu(device, n))
    less = f"; or {' or '.join(options)}, which needs fewer resources" if options else ""
    return f"run meshkit doctor{less}."


STAGES = 3  # that may take --timeout each: joining, building, one collective


def run(args: Namespace) -> Result_:
    """Check a mesh of ``n`` ranks started here, or of this rank and its peers. Collective."""
    sizes = read_axis_sizes(args.words)
    nested = ordered_sizes(sizes, args.order)
    request = {**sizes, **drop_none(order=args.order, groups=args.groups)}
    if args.n is None:
        check_launched(sizes)
        report = _check_under_launcher(request, args.device, args.timeout)
    else:
        GroupPlan.of(
            Layout(ranks=None, **infer_sizes(nested, args.n, f"-n {args.n}")), args.groups or ()
        )
        report = _check_locally(args.n, request, args.device, args.timeout)
    return Result_(report.as_dict, report.draw) if report.rank == 0 else Result_()


def check_mesh(request: Mapping[str, Any], device: str | None, timeout: float) -> CheckReport:
    """Join the job, build the mesh, check its groups, and close it. Collective."""
    from ..launch.join import init
    from ..live.build_mesh import build_mesh

    began = time.monotonic()
    with torch_errors("joining the job"):
        world = init(device=device, timeout=timeout)
    task = f"the check on rank {world.rank} of {world.world_size}"
    with torch_errors(task), build_mesh(**request) as mesh:
        built = time.monotonic()
        verification = mesh.verify(timeout=timeout)
        ended = time.monotonic()
    kind = world.device.type if world.device is not None else "cpu"
    job = world.launcher, kind, str(world.backend)
    sizes = mesh.layout.sizes
    return CheckReport(world.rank, sizes, *job, verification, built - began, ended - built)


def check_on_shared_device(
    request: Mapping[str, Any], device: str | None, timeout: float
) -> CheckReport:
    """Check with several ranks on this machine: on the cpu if there are too few devices."""
    return check_mesh(request, choose_shared_device(device), timeout)


def _check_under_launcher(
    request: Mapping[str, Any], device: str | None, timeout: float
) -> CheckReport:
    """Check as one rank of a launcher, then shut the job down."""
    from ..launch.join import shutdown

    try:
        with rank_0_progress("meshkit check"):
            return check_mesh(request, device, timeout)
    finally:
        shutdown()


def _check_locally(
    n: int, request: Mapping[str, Any], device: str | None, timeout: float
) -> CheckReport:
    """Return the report of rank 0 of ``n`` ranks started here."""
    given = request, device, timeout
    limit, title = STAGES * timeout + ENDING, "meshkit check"
    return spawn_ranks(check_on_shared_device, n, given, device=device, timeout=limit, title=title)[
        0
    ]


def _add_options(parser: ArgumentParser) -> None:
    add_mesh(parser)
    add_groups(parser)


CHECK = Command(
    "check",
    "build a mesh of real ranks, and check every group",
    _add_options,
    run,
    ("dp=2 tp=2 -n 4 --device cpu", "dp=-1 tp=2 -n 4 --groups 'dp tp'"),
)


ROW = 1024  # bytes of one greeting: a host name has 253 at most


@dataclass(frozen=True)
class Greeting:
    """The report of one rank."""

    rank: int
    world_size: int
    local_rank: int
    host: str  # name of its machine
    device: str
    backend: str
    launcher: str
    pid: int
    ok: bool  # whether its all-reduce was correct


def run_hello(args: Namespace) -> Result_:
    """Greet from ``n`` processes started here, or from this rank of its launcher. Collective."""
    if args.n is not None:
        return _result(_greet_locally(args))
    from ..launch.join import shutdown

    try:
        with rank_0_progress("meshkit hello"):
            greeting = greet(args.device, args.timeout)
            result = _result(_gather(greeting))
    finally:
        shutdown()
    return result if greeting.rank == 0 else Result_(ok=result.ok)


def _greet_locally(args: Namespace) -> list[Greeting]:
    """Return the greetings of ``n`` ranks started here."""
    return spawn_ranks(
        greet_on_shared_device,
        args.n,
        (args.device, args.timeout),
        device=args.device,
        timeout=args.timeout + ENDING,
        title="meshkit hello",
    )


def greet(device: str | None, timeout: float) -> Greeting:
    """Join the job, check one all-reduce, and return the report of this rank. Collective."""
    from ..launch.join import init

    with torch_errors("joining the job"):
        world = init(device=device, timeout=timeout)
    with torch_errors(f"the all-reduce of rank {world.rank} of {world.world_size}"):
        ok = _check_all_reduce(world.rank, world.world_size, str(world.device))
    return Greeting(
        rank=world.rank,
        world_size=world.world_size,
        local_rank=world.local_rank,
        host=socket.gethostname(),
        device=str(world.device),
        backend=str(world.backend),
        launcher=world.launcher,
        pid=os.getpid(),
        ok=ok,
    )


def greet_on_shared_device(device: str | None, timeout: float) -> Greeting:
    """Greet from one of several ranks on this machine: on the cpu if there are too few devices."""
    return greet(choose_shared_device(device), timeout)


def _check_all_reduce(rank: int, world_size: int, device: str) -> bool:
    """Return whether the 1 of every rank arrives at its position. Collective."""
    import torch
    import torch.distributed as dist

    ones = torch.zeros(world_size, dtype=torch.int64, device=device)
    ones[rank] = 1
    dist.all_reduce(ones)
    return bool((ones == 1).all())


def _gather(greeting: Greeting) -> list[Greeting]:
    """Return the greetings of all ranks as JSON: no data of a peer is unpickled. Collective."""
    import torch

    from ..live.groups import all_gather

    text = json.dumps(asdict(greeting)).encode()
    row = torch.zeros(ROW, dtype=torch.uint8)
    row[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    with torch_errors(f"sending the greeting of rank {greeting.rank}"):
        rows = all_gather(row.to(greeting.device))
    return [Greeting(**json.loads(bytes(row.tolist()).rstrip(b"\0"))) for row in rows]


def _result(greetings: Sequence[Greeting]) -> Result_:
    ok, ranks = all(greeting.ok for greeting in greetings), [asdict(each) for each in greetings]
    return Result_(
        lambda: {"ok": ok, "world_size": len(greetings), "ranks": ranks},
        partial(as_text, greetings),
        ok,
    )


def as_text(greetings: Sequence[Greeting], *, width: int, ascii: bool = True) -> str:
    """Return greetings as text, one line each, with the outcome of the all-reduce."""
    lines = [
        f"rank {greeting.rank} of {greeting.world_size} says hello from host {greeting.host}, "
        f"device {greeting.device}, pid {greeting.pid}"
        for greeting in greetings
    ]
    wrong = [greeting.rank for greeting in greetings if not greeting.ok]
    summary = f"the all-reduce over {count_noun(len(greetings), 'rank')} on {greetings[0].backend}"
    last = f"FAILED: {summary} was wrong on {format_ranks(wrong)}." if wrong else f"OK: {summary}."
    return "\n".join(part for line in [*lines, last] for part in wrap_lines(line, width))


HELLO = Command(
    "hello",
    "greet from every rank, and check one all-reduce",
    add_ranks,
    run_hello,
    ("-n 4 --device cpu", "-n 2 --device cpu --json"),
)


MAX_PORT = 65535


def run_store(args: Namespace) -> Result_:
    """Host a store until a signal ends the process."""
    from ..launch.open_store import serve_store

    def announce(address: str) -> None:
        text = f'The store is at {address}, for init(init_method="{address}/<name of the job>").'
        print(json.dumps({"address": address}) if args.json else text, flush=True)

    serve_store(args.port, announce)
    return Result_()


def read_port(text: str) -> int:
    """Read a port, from 0 to 65535."""
    port = read_integer(text, least=0)
    if port > MAX_PORT:
        raise ArgumentTypeError(f"{text!r} is not a port from 0 to {MAX_PORT}")
    return port


def _add_options_store(parser: ArgumentParser) -> None:
    help = "port at which the store answers; 0 takes a free one"
    parser.add_argument("--port", type=read_port, required=True, help=help)


STORE = Command(
    "store",
    "host the store of jobs, until Ctrl-C",
    _add_options_store,
    run_store,
    ("--port 29400", "--port 0 --json"),
)
