"""The check-in of a rank in an agreement round: its process and its request."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist

from .foreign_value import read_value
from .keys import CHECK_IN, SEVERAL_HOSTS

MAX_CHECKED = 100_000  # keys of one check


class ProcessIdentity(NamedTuple):
    """Host and pid of a process, as errors show them."""

    host: str
    pid: int

    @classmethod
    def current(cls) -> ProcessIdentity:
        """Return the identity of this process."""
        return cls(socket.gethostname(), os.getpid())

    @classmethod
    def from_record(cls, record: Sequence[Any]) -> ProcessIdentity:
        """Return the identity that a process wrote as JSON."""
        host, pid = record
        return cls(str(host), int(pid))

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.pid}"


class CheckIn(NamedTuple):
    """The process and the request of a rank that has arrived, and its seconds by phase so far."""

    process: ProcessIdentity
    request: Mapping[str, str] = {}
    seconds: Mapping[str, float] = {}

    @classmethod
    def from_json(cls, text: str | bytes) -> CheckIn:
        """Return the check-in that a rank wrote."""
        record = json.loads(text)
        request = {str(name): str(field) for name, field in record["request"].items()}
        seconds = {str(phase): float(time) for phase, time in record["seconds"].items()}
        return cls(ProcessIdentity.from_record(record["process"]), request, seconds)

    def post(self, store: dist.Store, rank: int) -> None:
        """Write this check-in to the store of a round. Cost: one store operation."""
        store.set(CHECK_IN.format(rank), json.dumps(self._asdict()))


def read_check_ins(store: dist.Store, ranks: Sequence[int]) -> dict[int, CheckIn]:
    """Return the check-ins of the ranks that have arrived, by rank.

    Cost: one or two store operations if all have arrived, else a list of all keys in the store.
    In a file it costs some 20 operations for each missing rank.
    """
    arrived = _arrived(store, list(ranks))
    keys = [CHECK_IN.format(rank) for rank in arrived]
    extended: Any = store  # mypy does not know the extended API
    at_once = keys and extended.has_extended_api()
    texts = extended.multi_get(keys) if at_once else [store.get(key) for key in keys]
    return {
        rank: read_value(name, text, CheckIn.from_json)
        for rank, name, text in zip(arrived, keys, texts, strict=True)
    }


def read_hosts(store: dist.Store, ranks: Sequence[int]) -> list[str]:
    """Return the host of each rank, in order, once all of them have checked in.

    Cost: one store operation if all ranks are on one host, else that of reading all check-ins.
    """
    if not store.check([SEVERAL_HOSTS]):
        return [ProcessIdentity.current().host] * len(ranks)
    check_ins = read_check_ins(store, ranks)
    return [check_ins[rank].process.host for rank in ranks]


def _arrived(store: dist.Store, ranks: Sequence[int]) -> list[int]:
    """Return the ranks that have checked in: from the list of all keys, or by bisection."""
    extended: Any = store
    if not extended.has_extended_api():
        return _bisect(store, [*ranks])
    if len(ranks) <= MAX_CHECKED and store.check([CHECK_IN.format(rank) for rank in ranks]):
        return [*ranks]
    prefix = CHECK_IN.format("")
    names = [name.removeprefix(prefix) for name in extended.list_keys() if name.startswith(prefix)]
    return sorted(int(name) for name in names if name.isdecimal() and int(name) in ranks)


def _bisect(store: dist.Store, ranks: list[int]) -> list[int]:
    """Return the ranks that have checked in, by bisection: one check covers many keys."""
    if not ranks or store.check([CHECK_IN.format(rank) for rank in ranks]):
        return ranks
    if len(ranks) == 1:
        return []
    middle = len(ranks) // 2
    return _bisect(store, ranks[:middle]) + _bisect(store, ranks[middle:])
