"""Rehearse a job of any size: play some of its ranks on one machine, and compare what they do.

::

    caller    -- fn, args, ranks -->   stage (torch is loaded)   fork -->   rank 0, then the others
              <-- trace or error --                              <------

A rank runs the program of the job in a world of the real size, over groups that record and return
at once (:mod:`meshkit.rehearse.recording`). Rank 0 is played first: its mesh decides which ranks
stand for the others, the libraries that it imports are loaded once for all, and the sizes and
objects that it sends are received by ranks played later.
"""

from __future__ import annotations

import gc
import os
import pickle
import random
import runpy
import signal
import socket
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..call import parse_integer, quotes_call
from ..errors import RankTimeoutError, SpecError
from ..launch.job import Job, Membership, set_current_job
from ..launch.judges import Process
from ..launch.log import Progress
from ..launch.spawn import (
    check_arguments_fit,
    child_environment,
    context_for,
    pickle_job,
    sendable_error,
    set_up_worker,
    start_process,
)
from ..launch.times import ARRIVAL, Time, parse_timeout
from ..launch.torch_rehearsal import BACKEND, LiveBytes, allow_meta_training
from ..launch.world import LOOPBACK_HOST, World
from ..layout.layout import Layout
from ..layout.topology import Topology
from ..plan.step_time import MACHINES
from ..text import count_noun
from .mismatches import differs_from, find_mismatches, uncounted_groups, uneven_data
from .record import MESSAGES, Names, Trace, corner_ranks, derive_layout, standing_corner
from .recording import (
    LIBRARIES,
    PACKAGE,
    Key,
    Payloads,
    RecordedRound,
    Recorder,
    Shared,
    start_recording,
)
from .report import RehearsalReport

MAX_ALL = 256  # ranks that ranks="all" plays
WITNESSES = 16
MAX_PASSES = 4  # of all ranks, until what they read is what all have passed
DEVICES = ("cpu", "meta")
PORT = 29500  # MASTER_PORT of the ranks; nobody listens


class RehearsalRequest(NamedTuple):
    """The program of every rank, and the world in which it runs."""

    job: bytes  # fn and args, pickled
    world_size: int
    nodes: int
    device: str
    environ: dict[str, str]  # of a rank: that of the caller, and the variables of torchrun
    folder: str
    path: list[str]


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


@quotes_call("rehearse")
def rehearse(
    fn: Callable[..., object],
    world_size: int,
    args: Sequence[object] = (),
    *,
    nodes: int | None = None,
    ranks: str | Sequence[int] = "corners",
    device: str = "cpu",
    timeout: Time | None = 300,
    links: str = "h100",
    progress: bool = False,
) -> RehearsalReport:
    """Play ranks of a job of any size on this machine, and report whether their operations match.

    Local. Each played rank runs ``fn(*args)`` in a process of its own, in a world of the real size
    whose groups record every operation and return at once. Received values are plausible: those of
    the rank itself, or small ones that others have passed, for which all ranks are played again.
    ``init``, ``build_mesh``, ``init_process_group`` and DeviceMesh work as in the job. Ranks see
    the environment, the working folder and ``sys.path`` of the caller, and the variables of
    torchrun. Rank 0 prints to stderr, and the other ranks print nothing. No rank is left when this
    function returns or raises.

    Args:
        fn: a function that another process can import, as for :func:`meshkit.spawn`.
        world_size: the number of ranks of the job.
        args: its arguments.
        nodes: the number of nodes that the ranks divide over; None is one node.
        ranks: the ranks to play. ``"corners"``: the first, second and last index along each axis,
            those that exchange messages with them, and 16 random ranks, which must do the same as
            the corner that stands for them. ``"all"``, up to 256 ranks. Or a list.
        device: ``"cpu"``, or ``"meta"`` for models of any size: tensors have no values.
        timeout: how long the rehearsal may take, in seconds or as a timedelta.
        links: the machine whose links give seconds: ``"a100"``, ``"h100"``, ``"h200"``, ``"b200"``.
        progress: show a line on stderr while ranks are played.

    Returns:
        The report. ``print`` shows it, and ``raise_if_mismatched`` raises if a check failed.

    Raises:
        SpecError: if an argument is invalid. An error of a rank is a row of the report.

    Cost: as much as the program takes on one rank, for each played rank; as many ranks run at a
    time as there are cores. 60 to 90 ranks are played at corners of a mesh of four axes.

    Example:
        ``rehearse(train_step, 8192, nodes=1024).raise_if_mismatched()``
    """
    size, node_count = parse_integer(world_size), 1 if nodes is None else parse_integer(nodes)
    if size is None or size < 1:
        raise SpecError(f"world_size is {world_size!r}.", fix="an int of 1 or more.")
    if node_count is None or node_count < 1:
        raise SpecError(f"nodes is {nodes!r}.", fix="an int of 1 or more.")
    topology = Topology.even(size, nodes=node_count)
    limit = parse_timeout("timeout", timeout)
    if device not in DEVICES:
        raise SpecError(f"device is {device!r}.", fix="device='cpu', or device='meta'.")
    if links not in MACHINES:
        raise SpecError(f"links is {links!r}.", fix=f"one of {', '.join(MACHINES)}.")
    chosen = _parse_ranks(ranks, size)
    check_arguments_fit(fn, args)
    environ, path = child_environment(0, size, "", PORT), [p or os.getcwd() for p in sys.path]
    request = RehearsalRequest(
        pickle_job(fn, args), size, node_count, device, environ, os.getcwd(), path
    )
    shown = Progress("rehearse", sys.stderr if progress else None)
    began = time.monotonic()
    deadline = began + (limit.total_seconds() if limit else float("inf"))
    with _Stage(context_for(fn), request, deadline, shown) as stage:
        return _rehearse_until_settled(stage, chosen, topology, links, began)


def _parse_ranks(ranks: object, world_size: int) -> list[int] | None:
    """Return the ranks of a list, ascending; None for corners."""
    if isinstance(ranks, str):
        if ranks == "all" and world_size > MAX_ALL:
            line = f"ranks='all' plays at most {MAX_ALL} ranks; the job has {world_size}."
            raise SpecError(line, fix="ranks='corners', or a list of ranks.")
        if ranks not in ("all", "corners"):
            raise SpecError(f"ranks is {ranks!r}.", fix="'corners', 'all' or a list of ranks.")
        return [*range(world_size)] if ranks == "all" else None
    numbers = [parse_integer(rank) for rank in ranks] if isinstance(ranks, Iterable) else []
    valid = sorted({rank for rank in numbers if rank is not None and 0 <= rank < world_size})
    if not numbers or len(valid) != len(numbers):
        fix = f"a list of different ranks from 0 to {world_size - 1}."
        raise SpecError(f"ranks is {ranks!r}.", fix=fix)
    return valid


def _rehearse_until_settled(
    stage: _Stage, chosen: list[int] | None, topology: Topology, links: str, began: float
) -> RehearsalReport:
    """Play the ranks, and again if ranks have read values that others pass otherwise.

    Each pass receives what the ranks have passed to the collectives of the pass before.
    """
    for _ in range(MAX_PASSES):
        start = time.monotonic()
        report = _rehearse(stage, chosen, topology, links, began)
        traces = report.traces.values()
        reads = any({"own", "made up"} & {*t.reads} if report.ok else t.reads for t in traces)
        if not reads or not stage.start_again(report.ok):
            return report
        if time.monotonic() + 2 * (time.monotonic() - start) > stage.deadline:
            break
    line = "ranks have read other values in each pass, so that mismatches may follow from them."
    return replace(report, warnings=(*report.warnings, line))


def _rehearse(
    stage: _Stage, chosen: list[int] | None, topology: Topology, links: str, began: float
) -> RehearsalReport:
    """Play the ranks and check them."""
    size = topology.world_size
    first = chosen[0] if chosen else 0
    stage.play([first])
    trace = stage.traces.get(first, Trace(first))
    names = Names(_layouts(trace, size))
    witnesses: list[int] = []
    if chosen is not None:
        stage.play(chosen)
    else:
        layout = names.layouts[0]
        corners = corner_ranks(layout)
        stage.play(corners)
        others = [rank for rank in range(size) if rank not in corners]
        drawn = random.Random(size).sample(others, min(WITNESSES, len(others)))
        axes = _play_peers(stage, names)
        witnesses = [rank for rank in sorted(drawn) if rank not in stage.traces]
        stage.play(witnesses)
    warnings: list[str] = []
    traces = stage.traces
    played = [rank for rank in traces if rank not in witnesses]
    for rank in witnesses if played else ():
        corner = standing_corner(layout, rank, played, axes)
        if difference := stage.differ(rank, corner, names):
            stage.play(_neighbors(layout, rank))
            warnings.append(
                f"{names.rank(rank)} does not do the same as {names.rank(corner)}, which stands "
                f"for it: {difference}."
            )
    mismatches = find_mismatches(traces, names)
    odd = {rank for mismatch in mismatches for rank in mismatch.ranks}
    matching = {rank: trace for rank, trace in traces.items() if rank not in odd}
    warnings += uncounted_groups(matching, names) + uneven_data(matching, names)
    return RehearsalReport(
        size,
        topology,
        names,
        dict(sorted(traces.items())),
        tuple(mismatches),
        tuple(warnings),
        dict(sorted(stage.raised.items())),
        dict(stage.lines),
        witnesses=tuple(rank for rank in witnesses if rank in traces),
        links=links,
        device=stage.request.device,
        seconds=time.monotonic() - began,
    )


def _layouts(trace: Trace, world_size: int) -> list[Layout]:
    """Return the meshes of a program, the one that names ranks first."""
    sizes = [*{tuple(sizes.items()): sizes for sizes in trace.layouts}.values()]
    layouts = [Layout.of(each) for each in sizes]
    whole = [each for each in layouts if each.num_ranks == world_size]
    whole.append(Layout.of(derive_layout(world_size, trace.groups)))  # torchtitan splits one axis
    main = max(whole, key=lambda each: sum(size > 1 for size in each.shape))
    return [main, *(each for each in layouts if each is not main)]


def _play_peers(stage: _Stage, names: Names) -> set[str]:
    """Play the ranks whose messages corners get or need; return the axes of a pipeline.

    A peer that does not do what its corner does is a stage of its own. One rank of each such stage
    goes on to its own peers, so that one rank of each stage is played.
    """
    layout, axes, played = names.layouts[0], set[str](), [*stage.traces]
    peers = sorted({*_peers(stage.traces.values()), *stage.wanted})
    while new := [rank for rank in peers if rank not in played]:
        stage.play(new)
        stages: dict[tuple[tuple[str, int], ...], int] = {}
        for rank in sorted(new, key=lambda rank: _distance_to_second(layout, rank)):
            corner = standing_corner(layout, rank, played, axes)
            if stage.differ(rank, corner, names):
                own, other = layout.coordinate(rank), layout.coordinate(corner)
                index = tuple((axis, own[axis]) for axis in own if own[axis] != other[axis])
                stages.setdefault(index, rank)
        axes |= {axis for index in stages for axis, _ in index}
        played += new
        peers = _peers(stage.traces[rank] for rank in stages.values())
    return axes


def _distance_to_second(layout: Layout, rank: int) -> int:
    """Return along how many axes a rank is not the second one, which stands for most ranks."""
    indices = layout.coordinate(rank).values()
    return sum(i != min(1, size - 1) for i, size in zip(indices, layout.shape, strict=True))


def _peers(traces: Iterable[Trace]) -> list[int]:
    """Return the ranks with which ranks exchange messages."""
    messages = (op for trace in traces for op in trace.operations if op.name in MESSAGES)
    return sorted({op.peer for op in messages if op.peer >= 0})


def _neighbors(layout: Layout, rank: int) -> list[int]:
    """Return the first and the next rank in each group of one axis of a rank."""
    found: set[int] = set()
    for axis in layout.axes:
        peers = layout.peers(rank, axis).tolist()
        found |= {peers[0], peers[(peers.index(rank) + 1) % len(peers)]}
    return sorted(found)


# ------------------------------------------------------------------ the process that forks ranks


class _Stage:
    """The process that forks ranks, as the caller sees it."""

    def __init__(
        self,
        context: Any,  # noqa: ANN401
        request: RehearsalRequest,
        deadline: float,
        progress: Progress,
    ) -> None:
        self.request, self.deadline, self.progress = request, deadline, progress
        self.traces: dict[int, Trace] = {}
        self.raised: dict[int, BaseException] = {}
        self.lines: dict[int, str] = {}
        self.lacking: set[int] = set()  # raised for lack of a message of a rank not yet played
        self.wanted: set[int] = set()  # the ranks that would send it
        self.pipe, child_end = context.Pipe()
        self.process: BaseProcess = context.Process(target=_run_stage, args=(request, child_end))
        start_process(self.process)
        child_end.close()

    def __enter__(self) -> _Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.close()
        self.pipe.close()
        with suppress(ProcessLookupError, PermissionError):
            group = cast(int, self.process.pid)  # the ranks and what they started
            os.killpg(group, signal.SIGKILL)
        self.process.kill()
        self.process.join()

    def differ(self, rank: int, corner: int, names: Names) -> str:
        """Return where a rank differs from its corner; empty if one of them has not ended."""
        traces = self.traces.get(rank), self.traces.get(corner)
        if not (traces[0] and traces[1] and traces[0].has_ended and traces[1].has_ended):
            return ""
        return differs_from(traces[0], traces[1], names)

    def start_again(self, is_ok: bool) -> bool:
        """Forget all ranks if another pass would receive other values; return whether it would.

        Without a mismatch, only other sizes and objects are worth another pass.
        """
        try:
            self.pipe.send(is_ok)
            would_differ = bool(self.pipe.recv())
        except (EOFError, OSError):
            return False
        if would_differ:
            for kept in (self.traces, self.raised, self.lines, self.lacking, self.wanted):
                kept.clear()
        return would_differ

    def play(self, ranks: Iterable[int]) -> None:
        """Play those of the ranks that were not played yet, and again those that lack a message."""
        left = [rank for rank in dict.fromkeys(ranks) if rank not in {*self.traces, *self.raised}]
        if not left:
            return
        left += sorted(self.lacking, reverse=True)
        for rank in self.lacking:
            del self.traces[rank], self.raised[rank], self.lines[rank]
        self.lacking.clear()
        began = time.monotonic()
        with suppress(BrokenPipeError):
            self.pipe.send(left)
        missing = {*left}
        while missing and time.monotonic() < self.deadline:
            number = len(self.traces) + len(self.raised)
            self.progress.show(f"{count_noun(number, 'rank')} played, {len(missing)} to play")
            most = min(self.progress.seconds_left, self.deadline - time.monotonic(), 3600.0)
            if not self.pipe.poll(max(0.0, most)):
                continue
            try:
                rank, played = self.pipe.recv()
            except (EOFError, OSError):
                break
            missing.discard(rank)
            if isinstance(played, BaseException):
                self.raised[rank] = played
                continue
            self.traces[rank] = played.trace
            if played.error is not None:
                self.raised[rank], self.lines[rank] = played.error, played.line
                self.lacking |= {rank} if played.missing else set()
                self.wanted |= played.wanted
        seconds = time.monotonic() - began
        for rank in sorted(missing):
            text = f"it had not ended after {seconds:.1f} s, and was killed"
            self.raised[rank] = RankTimeoutError(text, missing_ranks=(rank,))


def _run_stage(request: RehearsalRequest, pipe: Connection) -> None:
    """Fork the ranks that the caller asks for."""
    with suppress(PermissionError):
        os.setsid()  # the caller ends this process and its ranks together
    set_up_worker(request.environ, "1")
    os.chdir(request.folder)
    sys.path[:] = request.path
    known: Payloads = {}
    shared: tuple[Shared, Shared] = {}, {}  # of the last pass, and of this one
    lacked: set[Key] = set()  # messages that a rank of this pass has not received
    _processes(request.world_size, request.world_size // request.nodes)
    with suppress(EOFError, OSError):  # the caller has ended
        while True:
            modules: set[str] = set()
            asked = pipe.recv()
            if isinstance(asked, bool):
                would_differ = bool(lacked & known.keys())
                would_differ |= _have_changed(*shared, only_sizes=asked)
                shared = (shared[1], {}) if would_differ else shared
                lacked.clear()
                pipe.send(would_differ)
                continue
            for rank, outcome in _play(request, asked, known, shared[0]):
                if isinstance(outcome, PlayedRank):
                    modules.update(outcome.modules)
                    lacked |= outcome.missing
                    for key, value in outcome.shared.items():
                        shared[1].setdefault(key, {})[rank] = value
                    outcome = outcome._replace(sent={}, shared={}, modules=[])
                pipe.send((rank, outcome))
            for name in sorted(modules - {*sys.modules}):
                with suppress(Exception):  # a library may need what a rank has set up
                    __import__(name)
            gc.collect()
            gc.freeze()


def _have_changed(last: Shared, new: Shared, *, only_sizes: bool) -> bool:
    """Return whether ranks have passed other values than those that they received.

    In the first pass each rank received its own.
    """
    for key, values in new.items():
        if only_sizes and "float" in str(key):
            continue
        if (last[key] != values) if key in last else len({*values.values()}) > 1:
            return True
    return False


def _play(
    request: RehearsalRequest, ranks: list[int], known: Payloads, shared: Shared
) -> Iterator[tuple[int, PlayedRank | BaseException]]:
    """Fork as many ranks at a time as there are cores, and yield the outcome of each.

    A rank that raised for lack of a message is played again once another one has sent it.
    """
    slots = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    lacking: dict[int, PlayedRank] = {}
    supplied: dict[int, set[tuple[object, ...]]] = defaultdict(set)  # messages for another try
    while ranks or running or lacking:
        for rank in [*lacking]:
            new = (lacking[rank].missing & known.keys()) - supplied[rank]
            if new:
                supplied[rank] |= new
                ranks.insert(0, rank)
                del lacking[rank]
        while ranks and len(running) < (slots or 1):
            end, process = _fork(request, ranks[0], known, shared)
            running[end] = ranks.pop(0), process
        if not running:
            yield from lacking.items()
            return
        for end in cast(list[Connection], wait([*running])):
            rank, process = running.pop(end)
            outcome = _receive(end, process)
            if isinstance(outcome, PlayedRank):
                known.update(outcome.sent)
                if outcome.error is not None and outcome.missing:
                    lacking[rank] = outcome
                    continue
            yield rank, outcome


def _fork(
    request: RehearsalRequest, rank: int, known: Payloads, shared: Shared
) -> tuple[Connection, BaseProcess]:
    context = get_context("fork")
    end, child_end = context.Pipe(duplex=False)
    process = context.Process(target=_run_rank, args=(request, rank, known, shared, child_end))
    start_process(process)
    child_end.close()
    return end, process


def _receive(end: Connection, process: BaseProcess) -> PlayedRank | BaseException:
    try:
        outcome: PlayedRank | BaseException = pickle.loads(end.recv_bytes())  # by our own child
    except (EOFError, OSError):
        process.join()
        outcome = RuntimeError(f"its process ended by itself, with exit code {process.exitcode}")
    end.close()
    process.join()
    return outcome


# ------------------------------------------------------------------ one rank


def _run_rank(
    request: RehearsalRequest, rank: int, known: Payloads, shared: Shared, pipe: Connection
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
        **request.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": str(node),
    }
    environ.pop("MESHKIT_SPAWN")
    set_up_worker(environ, "1")
    if request.nodes > 1:
        _name_host(f"node{node}")
    group = start_recording(recorder, size)
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
    hosts = _processes(size, local_size)
    epoch = Membership(0, range(size), size)
    rounds = partial(RecordedRound, group)
    set_current_job(Job(world, None, None, ARRIVAL, epoch, known=hosts, rehearsed=rounds))
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
def _processes(world_size: int, local_size: int) -> dict[int, Process]:
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
    own = value.to_local() if hasattr(value, "to_local") else value
    return int(own.numel() * own.element_size())


def _is_library(module: object) -> bool:
    file = str(getattr(module, "__file__", None) or "")
    return file.startswith((*LIBRARIES, PACKAGE))


def _last_line(error: BaseException) -> str:
    """Return the last line of the program in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(LIBRARIES)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Run a script as ``python path arguments`` does. The function that a command rehearses."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    runpy.run_path(path, run_name="__main__")
