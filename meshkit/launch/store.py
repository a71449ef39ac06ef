"""The store of a job: one class with prefixes, deadlines, loss, and values that no rank wrote.

If the host of the store is stopped, or the network to it is cut, a torch client waits for ever,
whatever its timeout. Operations on a :class:`Store` are therefore called inside
:meth:`Store.within`, which ends in time and raises :class:`RankTimeoutError` if the store is lost.
Nothing that is read from a store is unpickled.

The keys of a job, as paths::

    attempt                       the number of the torchrun attempt
    attempt/<n>/[<world size>/]   one attempt; without torchrun only attempt/0/
        agent/<name> ended past   its agents, whether it is over
        meshkit/newest            the number of the newest generation
        meshkit/lease/<rank>      the process that has taken a rank, and its generation
        meshkit/<generation>/     one start of the job
            init/ init/end/       the rounds of init
            round/<number>/       the rounds of all ranks, in the order of their calls
            mesh/<number>/        the rounds of a part of the ranks, and what a mesh posts; when
                                  all its ranks have closed it, their next rounds delete these
            recovered             the number of the newest membership; what it replaces is deleted
            recovery/<number>/    a round in which ranks that live find each other
            membership/<number>/  the same keys again, for the ranks that live since
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast
from urllib.parse import urlparse

import torch.distributed as dist

from .. import errors
from ..errors import LaunchError, MeshkitError, RankTimeoutError
from .connection import Connection
from .file_store import check_file, file_error
from .launchers import BY_TORCHRUN
from .name_lookup import describe_lookup
from .times import TIMES, Deadline, DeadlineExceededError, run_with_deadline
from .world import World

Value = TypeVar("Value")
Result = TypeVar("Result")

ATTEMPT = "attempt"  # the number of the newest torchrun attempt
SERVED = "store"  # the scheme of a store of its own: python -m meshkit store
FAULTS = AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError
MAX_DIGITS = 15  # of a number that ranks count
MAX_SHOWN = 60  # characters of a value that the error shows
# seconds between two looks of a rank that waits: first, and at most, which grows with the ranks
MIN_LOOK, MAX_LOOK, LOOK_PER_RANK = 0.0005, 0.02, 0.0003
KINDS = "CollectiveError", "DisagreementError", "LaunchError", "RankTimeoutError", "SpecError"
SLOW_NAMES_FIX = "export RES_OPTIONS=attempts:0 on all ranks, so that names come from /etc/hosts "
SLOW_NAMES_FIX += "alone; or repair the DNS of these hosts."
RANK_ATTRIBUTES = ("missing_ranks", "behind", "root")  # attributes of errors that hold ranks


class Store:
    """A part of the store of a job, as one rank sees it: torch's store, and a prefix of keys."""

    def __init__(
        self, root: dist.Store, world: World, path: str = "", connection: Connection | None = None
    ) -> None:
        self.root, self.world, self.path = root, world, path
        self.connection = connection or Connection(root)
        self._raw: dist.Store = dist.PrefixStore(path, root) if path else root

    def part(self, name: str) -> Store:
        """Return the part of the store below a name."""
        path = f"{self.path}/{name}" if self.path else name
        return Store(self.root, self.world, path, self.connection)

    def clone(self) -> Store:
        """Return the same part through a client of its own, for a backend whose waits hold it."""
        root = self.root if self.is_file else cast(Any, self.root).clone()
        return Store(root, self.world, self.path)

    @property
    def is_file(self) -> bool:
        """Whether this is a FileStore, of which every operation reads what others appended."""
        return not cast(Any, self.root).has_extended_api()

    @property
    def is_host(self) -> bool:
        """Whether this process may host the store, so that it leaves last."""
        return self.world.rank == 0 and hosted_by_rank_0(self.world)

    def within(
        self, seconds: float, work: Callable[[], Result], extend: Callable[[], float] | None = None
    ) -> Result:
        """Return the result of ``work``, which uses the store, or raise that the store is lost.

        ``extend`` returns how many more seconds a silent store has, once they are over.
        """
        try:
            return run_with_deadline(seconds, partial(self._check_and, work), extend=extend)
        except MeshkitError:
            raise
        except RuntimeError as error:  # of any store; DistStoreError for an unreadable file
            raise lost_error(self.world) from error
        except DeadlineExceededError:
            raise lost_error(self.world, silent=True) from None

    def _check_and(self, work: Callable[[], Result]) -> Result:
        self.check()
        return work()

    def time_for_names(self) -> float:
        """Return how many more seconds a silent store may need to look up a name. Local."""
        host, _ = address(self.world)
        is_slow = host is not None and describe_lookup(host, TIMES.lookup)[0]
        return TIMES.slow_lookup if is_slow else 0.0

    def run(self, work: Callable[[], Result]) -> Result:
        """Return the result of ``work``, which waits for no rank, or raise that the store is lost.

        It has longer if names are slow: a process that joins, or looks at the job, stalls the store
        for all ranks.
        """
        return self.within(TIMES.store, work, self.time_for_names)

    def try_within(
        self, seconds: float, work: Callable[[], Result], extend: Callable[[], float] | None = None
    ) -> Result | None:
        """Return the result of ``work``; None if the store is lost, for whatever reason. Local."""
        with suppress(RuntimeError, RankTimeoutError, DeadlineExceededError):
            return run_with_deadline(seconds, partial(self._check_and, work), extend=extend)
        return None

    def try_run(self, work: Callable[[], Result]) -> Result | None:
        """Return the result of ``work``, which waits for no rank; None if the store is lost."""
        return self.try_within(TIMES.store, work, self.time_for_names)

    def answers(self, seconds: float) -> bool:
        """Return whether the store answers a question in so many seconds. Local."""
        return self.try_within(seconds, lambda: self.has(ATTEMPT)) is not None

    @property
    def raw(self) -> dist.Store:
        """The store of torch for one operation, unless its host has left, as torch prints that."""
        if self.connection.has_ended():
            raise dist.DistNetworkError("the host of the store has closed the connection")
        return self._raw

    def check(self) -> None:
        """Raise if the store is lost, as far as this host knows. Local; a file may block."""
        check_file(self.root)
        self.raw  # noqa: B018  # which looks

    # Each of these is one operation, without a deadline of its own: call it inside ``within``.

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        self.raw.set(key, value)

    def get(self, key: str) -> bytes:
        """Return the value of a key that exists."""
        return bytes(self.raw.get(key))

    def get_all(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of some keys; none unless all exist. A FileStore cannot.

        Cost: one operation more, to look.
        """
        if not self.has(*keys):
            return []
        return [bytes(value) for value in cast(Any, self.raw).multi_get([*keys])]

    def add(self, key: str, number: int) -> int:
        """Add to a counter, and return it."""
        return int(self.raw.add(key, number))

    def number(self, key: str) -> int:
        """Return a counter, 0 if there is none. Unlike ``add(key, 0)`` it writes nothing."""
        return read_number(key, self.claim(key, "0", "0"))

    def has(self, *keys: str) -> bool:
        """Return whether all keys exist."""
        return bool(self.raw.check([*keys]))

    def claim(self, key: str, value: str, expected: str = "") -> bytes:
        """Write a value if the key has the expected one, by default none; return its value."""
        return bytes(self.raw.compare_set(key, expected, value))

    def delete(self, *keys: str) -> bool:
        """Delete keys, which need not exist; return whether one did."""
        return sum(self.raw.delete_key(key) for key in keys) > 0

    def keys(self) -> list[str]:
        """Return all keys of this part. Cost: reads all keys of the store."""
        return [*cast(Any, self.raw).list_keys()]

    def append(self, key: str, value: str) -> None:
        """Append to a value. A FileStore cannot."""
        cast(Any, self.raw).append(key, value)

    def read(self, key: str, parse: Callable[[str], Value]) -> Value | None:
        """Return a value, parsed; None if there is none. Cost: one operation more, to look."""
        return read_value(key, self.get(key), parse) if self.has(key) else None

    def wait(
        self, key: str, deadline: Deadline, ranks: int = 1, watch: Callable[[], None] = lambda: None
    ) -> bytes | None:
        """Wait for a key with other ranks; return its value, or None if there is none in time.

        It looks again and again, since a blocking ``get`` of torch would hold the client, which
        the watching threads use too. ``watch`` is called twice a second.
        """
        watched = time.monotonic()
        pause = MIN_LOOK
        while not self.raw.check([key]):
            if deadline.expired:
                return None
            time.sleep(min(pause, deadline.left))
            pause = min(1.25 * pause, max(MAX_LOOK, LOOK_PER_RANK * ranks))
            self.check()
            if time.monotonic() - watched >= TIMES.watch:
                watch()
                watched = time.monotonic()
        return bytes(self.raw.get(key))

    def stay(self, seconds: float, is_done: Callable[[], bool]) -> None:
        """On rank 0, which may host the store, wait until others are done, or some seconds."""
        deadline = Deadline.after(seconds if self.is_host else 0)
        while self.is_host and not is_done() and deadline.sleep(0.01):
            pass


def read_value(key: str, value: str | bytes, parse: Callable[[str], Value]) -> Value:
    """Return the value of a key, parsed, or raise an error that names the key."""
    try:
        return parse(value if isinstance(value, str) else value.decode())
    except FAULTS as error:
        shown = repr(value[:MAX_SHOWN]) + "..." * (len(value) > MAX_SHOWN)
        raise LaunchError(
            f"the key {key!r} of the job's store has a value that no rank wrote.",
            f"It is {len(value)} bytes: {shown}.",
            "Something else writes to this store.",
            fix="give the job a port or a file of its own: export MASTER_PORT=<a free port> on all "
            "ranks, or init_method=.",
        ) from error


def read_number(key: str, value: str | bytes) -> int:
    """Return the value of a key as a number, 0 or more."""
    is_number = value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS
    return read_value(key, value, lambda text: int(text if is_number else "no number"))


def error_to_json(error: MeshkitError) -> dict[str, Any]:
    """Return an error as JSON, without the call that it quotes."""
    return {
        "error": type(error).__name__,
        "summary": error.summary,
        "evidence": list(error.evidence),
        "fix": error.fix_text,
        "requests": {str(rank): text for rank, text in getattr(error, "requests", {}).items()},
        **{name: list(getattr(error, name, ())) for name in RANK_ATTRIBUTES},
        "kind": getattr(error, "kind", ""),
    }


def error_from_json(record: Mapping[str, Any]) -> MeshkitError:
    """Return the error that a rank wrote, an error of meshkit whatever the record says."""
    name = str(record["error"])
    kind: type[MeshkitError] = getattr(errors, name) if name in KINDS else MeshkitError
    requests = {int(rank): str(text) for rank, text in dict(record.get("requests", {})).items()}
    facts: dict[str, object] = {"requests": requests} if requests else {}
    for name in RANK_ATTRIBUTES:
        if record.get(name):
            facts[name] = tuple(int(rank) for rank in record[name])
    if record.get("kind"):
        facts["kind"] = str(record["kind"])
    evidence = [str(line) for line in record.get("evidence", ())]
    return kind(str(record["summary"]), *evidence, fix=str(record.get("fix", "")), **facts)


def address(world: World) -> tuple[str | None, int | None]:
    """Return host and port of the TCP store; None for the unknown."""
    if world.init_method in (None, "env://"):
        return world.master_addr, world.master_port
    try:
        url = urlparse(str(world.init_method))
        return (url.hostname, url.port) if url.scheme in ("tcp", SERVED) else (None, None)
    except ValueError:  # an invalid port, half an IPv6 address
        return None, None


def hosted_by_rank_0(world: World) -> bool:
    """Return whether the store ends with rank 0; also True if that is unknown."""
    is_file = str(world.init_method).startswith("file://")
    return not is_file and not is_served(world) and not hosted_by_agent(world)


def is_served(world: World) -> bool:
    """Return whether a process of its own hosts the store: ``python -m meshkit store``."""
    return str(world.init_method).startswith(f"{SERVED}://")


def hosted_by_agent(world: World) -> bool:
    """Return whether the torchrun agent hosts the store: the user did not ask for another one."""
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return has_agent and world.launcher in BY_TORCHRUN and world.init_method in (None, "env://")


def lost_error(world: World, *, silent: bool = False) -> RankTimeoutError:
    """Return the error of a store that is gone, or that does not answer."""
    url = str(world.init_method)
    lookup = ""
    if url.startswith("file://"):
        look = partial(file_error, url.removeprefix("file://"))
        with suppress(DeadlineExceededError):
            if error := run_with_deadline(TIMES.lookup if silent else TIMES.store, look):
                return RankTimeoutError(error.summary, *error.evidence, fix=error.fix_text)
        evidence, fix = f"It is {url}, which does not answer.", "look at that file system first."
    else:
        has_url = url.startswith("tcp://") or is_served(world)
        place = url if has_url else f"{world.master_addr}:{world.master_port}"
        is_slow = False
        if silent:
            is_slow, lookup = describe_lookup(str(address(world)[0]), TIMES.lookup)
        reason = "is stopped, or the network to it is cut" if silent else "has ended"
        reason = "waits for a name server, or is stopped" if is_slow else reason
        evidence = f"It was at {place}; the process that hosts it {reason}."
        if silent and world.rank == 0 and hosted_by_rank_0(world):  # so that it is not stopped
            evidence = f"It is at {place}, in this process, and does not answer it."
        fix = "look at the log of rank 0 first, or of the torchrun agent."
        if is_served(world):
            fix = "look at the output of `python -m meshkit store` there."
        fix = SLOW_NAMES_FIX if is_slow else fix
    missing = (0,) if hosted_by_rank_0(world) and world.rank else ()
    summary = f"rank {world.rank} lost the store of the job."
    lines = [evidence, lookup] if lookup else [evidence]
    return RankTimeoutError(summary, *lines, fix=fix, missing_ranks=missing)
