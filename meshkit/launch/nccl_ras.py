"""Read from NCCL's own service the counts of ranks whose process does not answer. Local.

NCCL has a thread in each process that answers for all ranks of its job (RAS, on localhost:28028),
also while Python holds the lock of its interpreter. It lists each communicator with its ranks, the
process of each, and how many collectives each has begun. It knows no sends, no sizes and no lines::

    client    CLIENT PROTOCOL 2        server    SERVER PROTOCOL 2
              TIMEOUT 1                          OK
              SET FORMAT json                    OK
              VERBOSE STATUS                     {"communicators": [...]}, and the connection ends

The protocol is that of NCCL 2.28.9 and newer in its source (``src/ras``). Against NCCL itself this
file never ran: its tests have a server that speaks it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .times import Deadline

ADDRESS = "localhost:28028"  # unless NCCL_RAS_ADDR names another one
LONGEST = 64 * 2**20  # bytes of an answer, at most


class Communicator(NamedTuple):
    """A communicator of NCCL: the process of each rank, and its collectives, as far as known."""

    size: int
    pids: Mapping[int, int]  # place in the communicator to process id
    counts: Mapping[int, int]  # place in the communicator to collectives begun


def ask_ras(seconds: float, environ: Mapping[str, str] = os.environ) -> list[Communicator]:
    """Return the communicators of the job that NCCL knows; none if it does not answer in time.

    Cost: milliseconds, or the whole time if processes of the job are stopped.
    """
    deadline = Deadline.after(seconds)
    host, _, port = environ.get("NCCL_RAS_ADDR", ADDRESS).rpartition(":")
    try:
        with socket.create_connection((host.strip("[]") or "localhost", int(port)), seconds) as at:
            for line in ("CLIENT PROTOCOL 2", f"TIMEOUT {max(1, int(seconds))}", "SET FORMAT json"):
                at.sendall(f"{line}\n".encode())
                answer = _read(at, deadline, until=b"\n")
                if not answer.startswith((b"SERVER PROTOCOL", b"OK")):
                    return []
            at.sendall(b"VERBOSE STATUS\n")
            return parse_status(json.loads(_read(at, deadline)))
    except (OSError, ValueError, LookupError, TypeError):  # no server, or none that we know
        return []


def _read(connection: socket.socket, deadline: Deadline, until: bytes = b"") -> bytes:
    """Return what a server sends, until a line ends or the connection does."""
    answer = b""
    while not (until and answer.endswith(until)):
        connection.settimeout(max(deadline.left, 0.001))
        part = connection.recv(2**16)
        if not part:
            break
        answer += part
        if len(answer) > LONGEST or deadline.expired:
            raise TimeoutError
    return answer


def parse_status(status: Mapping[str, Any]) -> list[Communicator]:
    """Return the communicators in an answer of NCCL's service."""
    communicators = []
    for each in status["communicators"]:
        ranks = each["ranks"]
        pids = {int(rank["rank"]): int(rank["pid"]) for rank in [*ranks, *each["missing_ranks"]]}
        counts = {int(r["rank"]): sum(map(int, r["collective_counts"].values())) for r in ranks}
        known = {place: pid for place, pid in pids.items() if pid > 0}
        communicators.append(Communicator(int(each["size"]), known, counts))
    return communicators


def lags(
    communicators: Sequence[Communicator], pids: Sequence[int | None], place: int
) -> dict[int, int]:
    """Return how many collectives fewer than this rank the others of a group have begun.

    Communicators have no names, so that of a group is known by its processes in their order.
    A group is left out if two communicators have them, or if some process is unknown. ``pids`` has
    the process of each rank of the group, in its order, and ``place`` is that of this rank.
    """
    wanted = dict(enumerate(pids))
    same = [each for each in communicators if each.size == len(pids) and each.pids == wanted]
    if len(same) != 1 or place not in same[0].counts:
        return {}
    counts = same[0].counts
    return {other: counts[place] - count for other, count in counts.items() if other != place}
