"""A stand-in for NCCL on the CPU: what torch's source says of its semantics, played over gloo.

``register()`` adds the backend ``nccl_like`` to this process. It plays these facts of torch's
``ProcessGroupNCCL``:

* a call returns before its work is done, and ``work.wait()`` waits for nothing: the next function
  that reads or writes the tensor does, as a kernel of the same stream would
  (``synchronize()`` waits for all works, as ``torch.cuda.synchronize``, and an ``Event`` for those
  that some ``work.wait()`` has put before it into the stream of the caller);
* the stream of a group waits for that of the caller, so a work starts on the device after all works
  of other groups for which the caller has called ``work.wait()``;
* nothing raises in the thread that waits: a lost peer or a hang is seen by a watchdog only, which
  ends the process at the timeout, unless TORCH_NCCL_ASYNC_ERROR_HANDLING is 0 when the group
  is made (unset it counts as 3);
* an abort ends the works of its own group, whose tensors hold garbage then, and waits until the
  device has no work left. So the abort of an idle group waits for the hanging work of another one,
  until its timeout raises (seen with torch 2.11 on an H200). An NCCL group call does not help;
* ``work.wait(timeout)`` that fails aborts its own group alone;
* a split from a default group that is not the first group of the process ends the process with
  SIGSEGV, unless its options name its ranks (pytorch#191952; seen there too);
* the messages of a pair run in their order, so a send and a receive that are not in one batch block
  each other: here they are refused;
* healthy groups are destroyed by all of their ranks together;
* a group connects in its creation beside a bound default group, else in its first work;
* the flight recorder has each work, with its state on the device and the ends of a message, but
  whether a work has started only with TORCH_NCCL_ENABLE_TIMING=1;
* every rank takes part in the creation of a group from a bound default group
  (``perform_nocolor_split``), whatever the backend of the new group.

The device is the CPU. ``cpu:gloo,cuda:nccl_like`` plays two devices: a tensor of ``on_device``
belongs to the second one.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType, _DistributedBackendOptions
from torch.overrides import TorchFunctionMode

NAME = "nccl_like"
GARBAGE = 12345.0  # the partial sum that an aborted collective leaves
LONG = timedelta(hours=1)  # gloo never raises before the stand-in's own timeout
LOOK = 0.05  # seconds between two looks of the watchdog
WATCHDOG = "the watchdog of nccl_like ends this process"
REFUSED = "nccl_like: a send and a receive of one pair need one batch_isend_irecv"

LIVE: list[Group] = []  # the groups of this process that are neither destroyed nor aborted
PENDING: list[Work] = []  # the works of this process that are not done
ABORTED: list[str] = []  # the names of the groups that were aborted, in order
OPTIONS: list[Any] = []  # the options of the groups of this process that were given some
CONNECTED: list[int] = []  # the size of each communicator of this process, in order
SIZES: list[int] = []  # how many messages each batch of this process had
RECORD: list[dict[str, Any]] = []  # the works of this process as torch's flight recorder has them
WEDGED: set[str] = set()  # the names of the groups whose works never end
NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall_base": "all_to_all"}
NAMES |= {"_allgather_base": "_all_gather_base"}
_made: list[str] = []  # the names of all groups of this process
_batch = threading.local()
_on_device: set[int] = set()  # the storages of the second device
_splits: list[str] = []  # the splits of the default group in which this rank took part


def register(patch: pytest.MonkeyPatch | None = None) -> None:
    """Add the backend to this process, and let tensors wait for works as those of a GPU do."""
    patch = patch or pytest.MonkeyPatch()
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    dist.Backend.default_device_backend_map["cpu"] = "gloo"
    batched = dist.batch_isend_irecv

    def in_batch(operations: list[dist.P2POp]) -> list[dist.Work]:
        _batch.is_open = True
        SIZES.append(len(operations))
        try:
            return batched(operations)
        finally:
            _batch.is_open = False

    patch.setattr(dist, "batch_isend_irecv", in_batch)
    patch.setattr(torch.cpu, "synchronize", synchronize)
    patch.setattr(torch.cpu, "Event", Event, raising=False)
    patch.setattr(dist, "split_group", split_group)
    # torch 2.15 can record only a group with a backend in C++, and not play the split of another
    patch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    patch.setattr(dist.distributed_c10d, "_DistributedBackendOptions", Options)
    recorder: Any = torch._C._distributed_c10d
    patch.setattr(recorder, "_dump_nccl_trace_json", _dump_record, raising=False)
    threading.Thread(target=_watch, daemon=True).start()
    Waits().__enter__()


def _dump_record(**_: bool) -> bytes:
    """Return the flight recorder of NCCL, whose function a build without CUDA does not have."""
    return json.dumps({"entries": RECORD}).encode()


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as one of the second device of a mixed group."""
    _on_device.add(tensor.untyped_storage().data_ptr())
    return tensor


def synchronize(device: object = None) -> None:
    """Wait for every work of this process, as ``torch.cuda.synchronize``; nothing is raised."""
    for work in [*PENDING]:
        work.block()


def waited_works() -> list[Work]:
    """Return the works for which the stream of the caller waits."""
    return [work for work in PENDING if work.is_waited]


class Event:
    """A point in the stream of the caller, as ``torch.cuda.Event``."""

    def record(self, stream: object = None) -> None:
        """Set the point."""
        self.works = waited_works()

    def synchronize(self) -> None:
        """Wait for the works before it; nothing is raised."""
        for work in self.works:
            work.block()


def split_group(split_ranks: list[list[int]], **options: Any) -> dist.ProcessGroup:
    """Split the default group as torch's function, which dies where it does not know the ranks."""
    world: Any = dist.group.WORLD
    known = world.options.global_ranks_in_group
    if not known and world.number:
        os.kill(os.getpid(), signal.SIGSEGV)
    assert known in ([], [*range(world.size())])
    groups = [dist.new_group(ranks, **options) for ranks in split_ranks]
    return groups[[dist.get_rank() in ranks for ranks in split_ranks].index(True)]


class Waits(TorchFunctionMode):
    """A function that touches the data of a tensor waits for the works on it."""

    LOCAL = frozenset({"__get__", "is_complex", "is_contiguous", "contiguous", "size", "view"})

    def __torch_function__(  # type: ignore[override]
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call the function once the works on its tensors are done."""
        name = getattr(function, "__name__", "")
        if PENDING and name not in self.LOCAL:
            storages = {*map(_storage, _tensors([*args, *(kwargs or {}).values()]))}
            for work in [work for work in PENDING if work.storages & storages]:
                work.block()
        return function(*args, **(kwargs or {}))


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _storage(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage().data_ptr()


class Work(dist.Work):
    """A collective in the stream of its group."""

    def __init__(self, group: Group, tensors: list[torch.Tensor], *, blocks: bool = False) -> None:
        super().__init__()
        self.group, self.tensors, self.blocks = group, tensors, blocks
        self.storages = {*map(_storage, tensors)}
        self.began, self.limit = time.monotonic(), group.timeout  # torch's own timeout is read-only
        self.done, self.failed = threading.Event(), ""
        self.is_waited = False  # whether the stream of the caller waits for it
        self.entry: dict[str, Any] = {}  # in the flight recorder
        self.future: torch.futures.Future[Any] = torch.futures.Future()
        PENDING.append(self)

    def start_after(self, works: Iterable[Work]) -> None:
        """Wait on the device for the works before this one, and start it."""
        for work in works:
            work.done.wait()
        if not self.done.is_set() and os.environ.get("TORCH_NCCL_ENABLE_TIMING") == "1":
            self.entry["state"] = "started"

    def finish(self) -> None:
        """Let every waiting thread go on."""
        if self in PENDING:
            self.entry |= {"state": "completed", "retired": True}
            PENDING.remove(self)
            self.done.set()
            self.future.set_result(self.tensors)

    def block(self) -> None:
        """Block the calling thread until the work has ended, well or by an abort."""
        while not self.done.is_set():  # no line of Python says that it waits, as in ``.cpu()``
            time.sleep(0.02)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for nothing, but in a barrier, or with a timeout."""
        self.is_waited = True
        if timeout:
            if not self.done.wait(timeout.total_seconds()):
                self.group.abort()
                raise dist.DistBackendError("nccl_like: timed out in blocking wait")
        elif self.blocks:
            self.block()
        return True

    def is_completed(self) -> bool:
        """Return whether the work has ended."""
        return self.done.is_set()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the tensors."""
        return self.future

    def synchronize(self) -> None:
        """Wait for nothing."""

    def result(self) -> list[torch.Tensor]:
        """Return the tensors."""
        return self.tensors


class Options(_DistributedBackendOptions):
    """Options of a new group that may be split from a ``Device``, which is not written in C++."""

    split_from: Any = None


class Device:
    """The backend object of a group for its device."""

    supports_splitting = True
    supports_coalescing = False

    def __init__(self, group: Group) -> None:
        self.group = group

    @property
    def options(self) -> SimpleNamespace:
        """The options, of which the timeout and the ranks are played."""
        self.group.options._timeout = self.group.timeout
        return self.group.options

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later works."""
        self.group.timeout = timeout

    _set_default_timeout = set_timeout

    def name(self) -> str:
        """Return the name of the backend."""
        return NAME

    def get_error(self) -> ErrorType:
        """Return the error that the watchdog has seen."""
        return self.group.error

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Do nothing: the constructor has connected."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Take part, outside a new group, in its split from the default group."""
        self.group.split()


class Device2(Device):
    """The same of nccl2 in torch 2.15, which has another name for a call."""

    _set_default_timeout = property()  # type: ignore[assignment]  # no attribute: its getter fails


class Group(dist.ProcessGroup):
    """A process group with NCCL's semantics, over a gloo group of the same ranks."""

    def __init__(self, options: Any, mixed: bool) -> None:
        rank, size = options.group_rank, options.group_size
        super().__init__(rank, size)
        self.store, self.timeout, self.mixed = options.store, options.timeout, mixed
        self.error, self.count, self.is_aborted = ErrorType.SUCCESS, 0, False
        self.options = SimpleNamespace(global_ranks_in_group=[])
        self.number, self.num_records = len(_made), 0
        _made.append(str(options.group_id))
        self.handling = int(os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"))
        self._name, self._description, self._device = str(options.group_id), "", self.engine(self)
        world = dist.group.WORLD
        self.is_connected = False
        if isinstance(world, Group) and world.bound_device_id is not None:
            world.split()
            self.connect()
        gloo = dist.ProcessGroupGloo
        self.inner = gloo(dist.PrefixStore("stream", self.store), rank, size, timeout=LONG)
        self.host = None
        if mixed:  # the collectives of the other device
            part = dist.PrefixStore("host", self.store)
            self.host = gloo(part, rank, size, timeout=options.timeout)
            self.host._set_sequence_number_for_group()
        self.messages: dict[int, set[str]] = {}  # peer to the open directions outside a batch
        self.stream: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run_stream, daemon=True).start()
        LIVE.append(self)

    # ------------------------------------------------------------ what torch asks a group

    bound_device_id = None  # a test sets it on the class
    engine = Device  # so is this
    group_name = property(lambda self: self._name)
    group_desc = property(lambda self: self._description)

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in (["cpu", "cuda"] if self.mixed else ["cpu"])]

    def _get_backend(self, device: torch.device) -> Any:
        return self.host if self.mixed and torch.device(device).type == "cpu" else self._device

    def name(self) -> str:
        """Return the name of the backend."""
        return NAME

    def get_group_store(self) -> dist.Store:
        """Return the store of the group."""
        store: dist.Store = self.store
        return store

    def _get_sequence_number_for_group(self) -> int:
        return self.count

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of all devices."""
        self.timeout = timeout
        if self.host is not None:
            self.host._set_default_timeout(timeout)

    # ------------------------------------------------------------ the stream

    def _run_stream(self) -> None:
        while True:
            self.stream.get()()

    def connect(self) -> None:
        """Make the communicator: at once beside a bound default group, else for the first work."""
        if not self.is_connected:
            CONNECTED.append(self.size())
        self.is_connected = True

    def start(
        self,
        call: Callable[[], Any],
        tensors: list[torch.Tensor],
        *,
        blocks: bool = False,
        name: str = "",
    ) -> Work:
        """Put a collective into the stream."""
        if self.is_aborted:
            raise dist.DistBackendError("NCCL communicator was aborted on this rank.")
        self.connect()
        ahead = waited_works()
        work = Work(self, tensors, blocks=blocks)
        work.entry = self.record(NAMES.get(name, name), tensors) if name else {}

        def run() -> None:
            work.start_after(ahead)
            if self._name in WEDGED or work.done.is_set():
                return
            try:
                call().wait()
            except RuntimeError as error:  # a peer is lost: only the watchdog sees it
                work.failed = str(error) or "lost"
                return
            if not self.is_aborted:
                work.finish()

        self.stream.put(run)
        return work

    def collective(
        self, name: str, outputs: list[torch.Tensor], *args: Any, blocks: bool = False
    ) -> Any:
        """Begin a collective on the device of its tensors."""
        self.count += 1
        if self.host is not None and outputs and _storage(outputs[0]) not in _on_device:
            return getattr(self.host, name)(*args)  # raises in the thread that waits
        call = lambda: getattr(self.inner, name)(*args)  # noqa: E731
        return self.start(call, outputs, blocks=blocks, name=name)

    def record(self, name: str, tensors: list[torch.Tensor]) -> dict[str, Any]:
        """Return a new entry of the flight recorder."""
        is_message = "->" in name or "<-" in name
        with torch._C.DisableTorchFunction():
            sizes = [[*tensor.shape] for tensor in tensors]
            dtypes = [torch.typename(tensor).removesuffix("Tensor")[6:] for tensor in tensors]
        self.num_records += 1
        entry = {
            "record_id": len(RECORD),
            "process_group": [self._name, self._description],
            "collective_seq_id": 0 if is_message else self.count,
            "p2p_seq_id": self.num_records if is_message else 0,
            "op_id": self.num_records,
            "profiling_name": f"nccl:{name}",
            "input_sizes": sizes,
            "input_dtypes": dtypes,
            "state": "scheduled",
            "retired": False,
            "time_created_ns": time.time_ns(),
        }
        RECORD.append(entry)
        return entry

    def split(self) -> None:
        """Take part in a split of this group, which waits for all of its ranks."""
        _splits.append(self._name)
        number = self.store.add(f"split/{len(_splits)}", 1)
        while number % self.size():
            number = self.store.add(f"split/{len(_splits)}", 0)
            time.sleep(0.01)

    # ------------------------------------------------------------ the end

    def abort(self) -> None:
        """Abort this group, and wait until the device has no work of any group."""
        self.end_by_abort()
        began = time.monotonic()
        while PENDING:
            if time.monotonic() - began > self.timeout.total_seconds():
                raise dist.DistBackendError("nccl_like: ProcessGroup abort timed out")
            time.sleep(0.01)
        ABORTED.append(self._name)

    def end_by_abort(self) -> None:
        """End all works, with garbage in their tensors."""
        self.is_aborted = True
        if self in LIVE:
            LIVE.remove(self)
        for work in [work for work in PENDING if work.group is self]:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                for tensor in work.tensors:
                    tensor.fill_(GARBAGE)
            work.finish()

    def shutdown(self) -> None:
        """Destroy the group: a healthy one with all of its ranks."""
        if self.is_aborted or self not in LIVE:
            return
        if not self.is_connected:
            LIVE.remove(self)
            return
        work = self.start(self.inner.barrier, [])
        work.block()
        if self in LIVE:
            LIVE.remove(self)

    # ------------------------------------------------------------ collectives

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        tensors = tensors if isinstance(tensors, list) else [tensors]
        return self.collective("allreduce", tensors, tensors, opts or dist.AllreduceOptions())

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        return self.collective("broadcast", tensors, tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        flat = [*_tensors(outputs)]
        return self.collective("allgather", flat, outputs, inputs)

    def reduce(self, tensors: Any, opts: Any) -> Any:
        return self.collective("reduce", tensors, tensors, opts)

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        return self.collective("gather", [*_tensors(outputs)], outputs, inputs, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        return self.collective("scatter", outputs, outputs, inputs, opts)

    def all_gather_single(self, output: Any, source: Any, opts: Any = None) -> Any:
        return self.collective("_allgather_base", [output], output, source)

    _allgather_base = all_gather_single

    def reduce_scatter_single(self, output: Any, source: Any, opts: Any = None) -> Any:
        args = output, source, opts or dist.ReduceScatterOptions()
        return self.collective("_reduce_scatter_base", [output], *args)

    _reduce_scatter_base = reduce_scatter_single

    def alltoall_base(
        self, output: Any, source: Any, outputs: Any, inputs: Any, opts: Any = None
    ) -> Any:
        args = output, source, outputs, inputs
        return self.collective("alltoall_base", [output], *args)

    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None) -> Any:
        self.count += 1
        return self.start(self.inner.barrier, [], blocks=True, name="barrier")

    # ------------------------------------------------------------ messages

    def send(self, tensors: Any, peer: int, tag: int) -> Work:
        return self._message("send", tensors, peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int) -> Work:
        return self._message("recv", tensors, peer, tag)

    def _message(self, direction: str, tensors: Any, peer: int, tag: int) -> Work:
        if not getattr(_batch, "is_open", False):
            directions = self.messages.setdefault(peer, set())
            directions.add(direction)
            if len(directions) > 1:
                raise RuntimeError(REFUSED)
        self.connect()
        started = getattr(self.inner, direction)(tensors, peer, tag)  # at once: no stream order
        thread_of_pair: queue.SimpleQueue[Work] = queue.SimpleQueue()
        ahead = waited_works()

        def wait() -> None:
            work = thread_of_pair.get()
            work.start_after(ahead)
            started.wait(LONG)
            work.finish()

        work = Work(self, tensors)
        arrow = "->" if direction == "send" else "<-"
        work.entry = self.record(f"{direction} {self.rank()}{arrow}{peer}", tensors)
        thread_of_pair.put(work)
        threading.Thread(target=wait, daemon=True).start()
        return work


def _create(options: Any, more: Any) -> Group:
    """Return a group for one device, or for two if torch has made a gloo group before.

    torch writes into the options of a group, and keeps them.
    """
    if more is not None:
        more.group_name = str(options.group_id)
        OPTIONS.append(more)
    return Group(options, mixed="cuda" in str(_backend_in_creation()))


def _backend_in_creation() -> str:
    """Return the backend string that torch's function which makes this group was given."""
    frame = sys._getframe(1)
    while frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back  # type: ignore[assignment]
    return str(frame.f_locals["backend"])


def _watch() -> None:
    """Look for works that have failed or are too old, as torch's watchdog."""
    while True:
        time.sleep(LOOK)
        for work in [*PENDING]:
            age = time.monotonic() - work.began
            is_late = work.limit is not None and age > work.limit.total_seconds()
            if not (work.failed or is_late):
                continue
            if work.group.error == ErrorType.SUCCESS:
                work.group.error = ErrorType.COMM_ERROR if work.failed else ErrorType.TIMEOUT
            if work.group.handling in (1, 3):
                why = work.failed or f"{work.limit} are over"
                print(f"{WATCHDOG}: {why}", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGABRT)
