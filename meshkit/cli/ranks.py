"""Commands that run ranks: ``check``, ``hello``, and ``store``, which outlives them.

The first two start the ranks on this machine, or a launcher has started them.
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
from functools import partial
from typing import Any, TypeVar

from ..call import drop_none
from ..errors import CALL, LaunchError, MeshkitError, SpawnError, SpecError
from ..guard.verification import CheckReport
from ..launch.detect import detect
from ..launch.log import Progress, show_progress
from ..layout.group_plan import GroupPlan
from ..layout.layout import Layout
from ..layout.sizes import infer_sizes, ordered_sizes
from ..text import count_noun, format_ranks, wrap_lines
from . import options
from .main import Command, Result

ENDING = 10.0  # seconds beyond the time limit of a command before its ranks are killed
STAGES = 3  # of a check that may take --timeout each: joining, building, one collective
ROW = 1024  # bytes of one greeting: a host name has 253 at most
MAX_PORT = 65535

Outcome = TypeVar("Outcome")
Greeting = dict[str, Any]  # the report of one rank, by field


def add_mesh(parser: ArgumentParser) -> None:
    """Add the sizes, ``--order`` and the options of :func:`add_ranks`."""
    help = f"{options.SIZES_HELP}; one size can be -1"
    parser.add_argument("words", nargs="+", metavar="AXIS=SIZE", help=help)
    options.add_order(parser)
    add_ranks(parser)


def add_ranks(parser: ArgumentParser) -> None:
    """Add the options ``-n``, ``--device`` and ``--timeout``."""
    help = "start N ranks on this machine; without it, this process is a rank of its launcher"
    parser.add_argument(
        "-n", "--world-size", dest="n", type=options.read_count, metavar="N", help=help
    )
    help = "cpu, cuda, ... (default: the accelerator, or the cpu if accelerators are fewer than N)"
    parser.add_argument("--device", help=help)
    help = "how long a rank waits for others, and how long a collective may take (default 60)"
    parser.add_argument(
        "--timeout", type=options.read_seconds, default=60.0, metavar="SECONDS", help=help
    )


def read_launched_layout(args: Namespace) -> Layout:
    """Return the layout of the ranks that ``-n`` starts, or of those of a launcher."""
    sizes = options.read_axis_sizes(args.words, args)
    with options.order_as_option():
        nested = ordered_sizes(sizes, args.order)
    world = detect()
    if args.n is not None:
        return Layout(
            ranks=None, **infer_sizes(nested, args.n, f"-n {args.n}", start="-n {number}")
        )
    needed = math.prod(size for size in sizes.values() if size != -1)
    if needed > 1 and world.launcher == "single":
        fix = f"-n {needed}, which starts them; or run it under a launcher."
        summary = f"{CALL} needs {count_noun(needed, 'rank')}, and this is a single process."
        raise SpecError(summary, fix=fix, sizes=sizes, world_size=1)
    return Layout(ranks=None, **infer_sizes(nested, world.world_size, world.size_evidence))


def check_device(device: str | None) -> None:
    """Check that torch knows the kind of a device, before a rank starts. Local."""
    from ..launch.device import parse_device

    try:
        parse_device(device or "cpu")
    except LaunchError as error:
        raise SpecError(error.headline, fix="--device cpu or --device cuda.") from error


def device_for(device: str | None, ranks: int) -> str | None:
    """Return the device that was asked for, or the cpu if ranks here have too few accelerators."""
    import torch

    from ..launch.device import accelerator, visible_devices

    kind = accelerator()
    too_few = kind is not None and visible_devices(torch.device(kind)) < ranks
    return "cpu" if device is None and too_few else device


def uses_cpu(device: str | None, ranks: int) -> bool:
    """Return whether ranks on this machine compute on the cpu."""
    from ..launch.device import accelerator

    return (device_for(device, ranks) or accelerator() or "cpu").partition(":")[0] == "cpu"


def run_sharing(
    function: Callable[..., Outcome], device: str | None, args: tuple[Any, ...]
) -> Outcome:
    """Run a function of a local rank on the device, or the cpu if there are too few of them."""
    return function(device_for(device, detect().world_size), *args)


def spawn_ranks(
    function: Callable[..., Outcome],
    n: int,
    device: str | None,
    args: tuple[Any, ...],
    *,
    timeout: float,
    smaller: str = "",
    title: str = "",
) -> list[Outcome]:
    """Start ``n`` ranks here, run ``function(device, *args)`` on each, and return the results.

    The title begins the lines of progress; without one there are none. ``smaller`` is an option
    that needs fewer resources, for the fix of a rank that was killed.
    """
    from ..launch.spawn import start_ranks

    try:
        work = function, device, args
        return start_ranks(run_sharing, n, work, timeout=timeout, title=title)
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
    if isinstance(cause, MeshkitError):
        lines, fix = [cause.headline, *cause.evidence], cause.fix_text
    else:
        lines = [line.strip() for line in str(cause).splitlines()] or [""]
        ways = [smaller] * bool(smaller) + ["--device cpu"] * (not uses_cpu(device, n))
        less = f"; or {' or '.join(ways)}, which needs fewer resources" if ways else ""
        fix = f"run meshkit doctor{less}."
    lines[0] = f"{type(cause).__name__}: {lines[0]}"
    summary = f"rank {first} of {n} failed first{also}."
    return SpawnError(summary, *lines, fix=fix, errors=error.errors)


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


def announcing_refusal(args: Namespace) -> AbstractContextManager[None]:
    """Announce an error in the block to the other ranks of a launcher, which would wait for it."""
    if args.n is not None or detect().world_size == 1:
        return nullcontext()

    from ..launch.join import announcing, identify

    return announcing(identify)


def run_under_launcher(title: str, function: Callable[..., Outcome], *args: object) -> Outcome:
    """Run a function as one rank of a launcher, then shut the job down. Collective."""
    from ..launch.join import shutdown

    world, progress = detect(), Progress(title, sys.stderr)
    progress.state = f"waiting for {count_noun(world.world_size, 'rank')}"
    try:
        with nullcontext() if world.rank or not title else show_progress(progress):
            return function(*args)
    finally:
        shutdown()


def run_check(args: Namespace) -> Result:
    """Check a mesh of ``n`` ranks started here, or of this rank and its peers. Collective."""
    GroupPlan.of(read_launched_layout(args), args.groups or ())  # raises before a rank starts
    more = drop_none(order=args.order, groups=args.groups)
    given = {**options.read_axis_sizes(args.words), **more}, args.timeout
    if args.n is None:
        checked = run_under_launcher("meshkit check", check_mesh, args.device, *given)
    else:
        limit = STAGES * args.timeout + ENDING
        ranks = partial(spawn_ranks, timeout=limit, title="meshkit check")
        checked = ranks(check_mesh, args.n, args.device, given)[0]
    return Result(checked.as_dict, checked.draw) if checked.rank == 0 else Result()


def check_mesh(device: str | None, request: Mapping[str, Any], timeout: float) -> CheckReport:
    """Join the job, build the mesh, check its groups, and close it. Collective."""
    from ..launch.init import init
    from ..mesh.build_mesh import build_mesh

    began = time.monotonic()
    with torch_errors("joining the job"):
        world = init(device=device, timeout=timeout)
    task = f"the check on rank {world.rank} of {world.world_size}"
    with torch_errors(task), build_mesh(**request) as mesh:
        built = time.monotonic()
        verification = mesh.verify(timeout=timeout)
        ended = time.monotonic()
    job = world.launcher, str(world.device).partition(":")[0], str(world.backend)
    sizes = mesh.layout.sizes
    return CheckReport(world.rank, sizes, *job, verification, built - began, ended - built)


def _add_check(parser: ArgumentParser) -> None:
    add_mesh(parser)
    options.add_groups(parser)


def run_hello(args: Namespace) -> Result:
    """Greet from ``n`` processes started here, or from this rank of its launcher. Collective."""
    rank = 0
    if args.n is not None:
        limit = args.timeout + ENDING
        ranks = partial(spawn_ranks, timeout=limit, title="meshkit hello")
        greetings = ranks(greet, args.n, args.device, (args.timeout,))
    else:
        rank, greetings = run_under_launcher("meshkit hello", greet_all, args.device, args.timeout)
    ok = all(greeting["ok"] for greeting in greetings)
    as_dict = {"ok": ok, "world_size": len(greetings), "ranks": greetings}
    draw = partial(format_greetings, greetings)
    return Result(ok=ok) if rank else Result(lambda: as_dict, draw, ok)


def greet(device: str | None, timeout: float) -> Greeting:
    """Join the job, check one all-reduce, and return the report of this rank. Collective."""
    from ..launch.init import init

    with torch_errors("joining the job"):
        world = init(device=device, timeout=timeout)
    with torch_errors(f"the all-reduce of rank {world.rank} of {world.world_size}"):
        ok = check_all_reduce(world.rank, world.world_size, str(world.device))
    return {
        "rank": world.rank,
        "world_size": world.world_size,
        "local_rank": world.local_rank,
        "host": socket.gethostname(),
        "device": str(world.device),
        "backend": str(world.backend),
        "launcher": world.launcher,
        "pid": os.getpid(),
        "ok": ok,
    }


def check_all_reduce(rank: int, world_size: int, device: str) -> bool:
    """Return whether the 1 of every rank arrives at its position. Collective."""
    import torch
    import torch.distributed as dist

    ones = torch.zeros(world_size, dtype=torch.int64, device=device)
    ones[rank] = 1
    dist.all_reduce(ones)
    return bool((ones == 1).all())


def greet_all(device: str | None, timeout: float) -> tuple[int, list[Greeting]]:
    """Return this rank, and the greetings of all. Collective."""
    greeting = greet(device, timeout)
    with torch_errors(f"sending the greeting of rank {greeting['rank']}"):
        texts = gather_texts(json.dumps(greeting), greeting["device"])
    return greeting["rank"], [json.loads(text) for text in texts]


def gather_texts(text: str, device: str) -> list[str]:
    """Return the text of each rank, of at most ``ROW`` bytes each. Collective over the world."""
    import torch

    from ..groups.groups import all_gather

    row = torch.zeros(ROW, dtype=torch.uint8)
    own = text.encode()
    row[: len(own)] = torch.tensor([*own], dtype=torch.uint8)
    return [bytes(other.tolist()).rstrip(b"\0").decode() for other in all_gather(row.to(device))]


def format_greetings(greetings: Sequence[Greeting], *, width: int, ascii: bool = True) -> str:
    """Return greetings as text, one line each, with the outcome of the all-reduce."""
    line = "rank {rank} of {world_size} says hello from host {host}, device {device}, pid {pid}"
    lines = [line.format(**greeting) for greeting in greetings]
    wrong = [greeting["rank"] for greeting in greetings if not greeting["ok"]]
    ranks, backend = count_noun(len(greetings), "rank"), greetings[0]["backend"]
    summary = f"the all-reduce over {ranks} on {backend}"
    last = f"FAILED: {summary} was wrong on {format_ranks(wrong)}." if wrong else f"OK: {summary}."
    return "\n".join(part for line in [*lines, last] for part in wrap_lines(line, width))


def run_store(args: Namespace) -> Result:
    """Host a store until a signal ends the process."""
    from ..launch.open_store import serve_store
    from ..launch.token import require_token

    def announce(address: str) -> None:
        text = f'The store is at {address}, for init(init_method="{address}/<name of the job>").'
        print(json.dumps({"address": address}) if args.json else text, flush=True)

    serve_store(args.port, announce, require_token() if args.token else "")
    return Result()


def read_port(text: str) -> int:
    """Read a port, from 0 to 65535."""
    port = options.read_integer(text, least=0)
    if port > MAX_PORT:
        raise ArgumentTypeError(f"{text!r} is not a port from 0 to {MAX_PORT}")
    return port


def _add_store(parser: ArgumentParser) -> None:
    help = "port at which the store answers; 0 takes a free one"
    parser.add_argument("--port", type=read_port, required=True, help=help)
    help = "answer only ranks that have the same MESHKIT_STORE_TOKEN as this process"
    parser.add_argument("--token", action="store_true", help=help)


CHECK = Command(
    "check",
    "build a mesh of real ranks, and check every group",
    _add_check,
    run_check,
    ("dp=2 tp=2 -n 4 --device cpu", "dp=-1 tp=2 -n 4 --groups 'dp tp'"),
)
HELLO = Command(
    "hello",
    "greet from every rank, and check one all-reduce",
    add_ranks,
    run_hello,
    ("-n 4 --device cpu", "-n 2 --device cpu --json"),
)
STORE = Command(
    "store",
    "host the store of jobs, until Ctrl-C",
    _add_store,
    run_store,
    ("--port 29400", "--port 0 --json"),
)
