"""The verdict of a meeting, as it stands in the store and as the error that every rank raises.

Who writes it has seen all there is to see, and writes the whole text: all ranks raise the same. It
is JSON; nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from ...core.call import Call
from ...core.errors import (
    CollectiveError,
    DisagreementError,
    LaunchError,
    MeshkitError,
    RankTimeoutError,
    SpecError,
)
from ...core.report.disagreement import disagreement
from ...core.text import format_ranks, plural

ALL = "all"
ELSEWHERE = "elsewhere"  # the key of a meeting to which ranks have come from several hosts
NAMED = 8  # ranks or hosts named one by one in an error
KINDS: dict[str, type[MeshkitError]] = {
    kind.__name__: kind
    for kind in (
        CollectiveError,
        DisagreementError,
        LaunchError,
        MeshkitError,
        RankTimeoutError,
        SpecError,
    )
}
RANKS = ("missing_ranks", "behind")  # attributes that hold ranks


@dataclass(frozen=True)
class CheckIn:
    """What a rank leaves when it checks in: from where it comes, and what it asks for."""

    host: str
    pid: int
    request: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls, request: Mapping[str, str]) -> CheckIn:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), request)

    def written(self) -> str:
        """As it stands in the store."""
        return json.dumps(vars(self))

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.pid}"


def check_ins(meeting: dist.Store, ranks: Sequence[int]) -> dict[int, CheckIn]:
    """Who of these ranks has checked in. Only a verdict needs it.

    One operation for all who came, and some twenty for each rank that did not.
    """
    here = _here(meeting, list(ranks))
    keys = [f"here/{rank}" for rank in here]
    store: Any = meeting  # mypy knows nothing of the extended API
    many = keys and store.has_extended_api()
    said = store.multi_get(keys) if many else [meeting.get(key) for key in keys]
    return {r: CheckIn(**json.loads(words)) for r, words in zip(here, said, strict=True)}


def hosts_of(meeting: dist.Store, ranks: Sequence[int]) -> list[str]:
    """From which host each of the ranks came, who are all here, this one among them.

    One operation where all came from one host; else as for those who are present, and one more.
    """
    if not meeting.check([ELSEWHERE]):
        return [socket.gethostname()] * len(ranks)
    came = check_ins(meeting, ranks)
    return [came[rank].host for rank in ranks]


def _here(meeting: dist.Store, ranks: list[int]) -> list[int]:
    """The ranks that have checked in: a store tells of many keys whether all of them are there."""
    if not ranks or meeting.check([f"here/{rank}" for rank in ranks]):
        return ranks
    if len(ranks) == 1:
        return []
    middle = len(ranks) // 2
    return _here(meeting, ranks[:middle]) + _here(meeting, ranks[middle:])


def disagreement_error(
    about: str, came: Mapping[int, CheckIn], missing: Sequence[int]
) -> DisagreementError:
    """The error of requests that had to be equal."""
    requests = {rank: one.request for rank, one in came.items()}
    where = {rank: str(one) for rank, one in came.items()}
    return disagreement(about, requests, where, missing)


def missing_ranks_error(
    what: Call | str,
    seconds: float,
    came: Mapping[int, CheckIn],
    missing: Sequence[int],
    place: Callable[[int], str] | None,
    *more: str,
) -> RankTimeoutError:
    """The error that names the ranks that did not come, with more lines of evidence."""
    names = first_few([f"{rank} ({place(rank)})" if place else str(rank) for rank in missing])
    hosts = first_few(sorted({one.host for one in came.values()}))
    on_hosts = f" on {plural('host', len(hosts))} {', '.join(hosts)}" if hosts else ""
    return RankTimeoutError(
        f"{len(missing)} of {len(came) + len(missing)} ranks did not arrive at {what} within "
        f"{seconds:g} s.",
        f"Missing: {', '.join(names)}. Arrived: {format_ranks(sorted(came))}{on_hosts}.",
        *more,
        fix=f"look at the logs of {plural('rank', len(missing))} {format_ranks(missing)} first.",
        missing_ranks=tuple(missing),
    )


def first_few(names: list[str]) -> list[str]:
    """Return the first few names, and how many more there are."""
    more = len(names) - NAMED
    return [*names[:NAMED], f"and {more} more"] if more > 0 else names


def failure_report(about: str, rank: int, error: BaseException) -> DisagreementError:
    """What the others hear of a rank whose own call failed."""
    first, *rest = str(error).splitlines() or [""]
    lines = [line.strip() for line in rest if not line.strip().startswith("Fix:")]
    fixes = [line.strip().removeprefix("Fix: ") for line in rest if line.strip().startswith("Fix:")]
    who = f"rank {rank} ({CheckIn.here({})})"
    return DisagreementError(
        about,
        f"{who} gave up: {type(error).__name__}: {first}",
        *lines,
        fix=fixes[0] if fixes else f"look at the log of rank {rank} first.",
        requests={rank: f"{type(error).__name__}: {first}"},
    )


def error_to_json(error: MeshkitError) -> str:
    """An error as it stands in the store."""
    requests = {str(rank): text for rank, text in getattr(error, "requests", {}).items()}
    ranks = {name: list(getattr(error, name, ())) for name in RANKS}
    text = {"summary": error.summary, "evidence": list(error.evidence), "fix": error.fix_text}
    kind = {"error": type(error).__name__}
    return json.dumps({**kind, **text, "requests": requests, **ranks})


def error_from_json(said: str) -> MeshkitError:
    """The error that stands in the store, as this rank raises it."""
    found = json.loads(said)
    kind = KINDS.get(str(found.get("error")), MeshkitError)
    requests = {int(rank): str(text) for rank, text in dict(found.get("requests", {})).items()}
    named: dict[str, object] = {"requests": requests} if requests else {}
    named |= {n: tuple(int(rank) for rank in found[n]) for n in RANKS if found.get(n)}
    evidence = [str(line) for line in found.get("evidence", ())]
    error = kind(str(found.get("summary")), *evidence, fix=str(found.get("fix", "")))
    vars(error).update(named)
    return error
