"""Who asked for what, in words: requests that had to be equal and are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .errors import told
from .runs import format_ranks

Request = Mapping[str, str]  # field to its value in words; equal requests mean equal calls

SHOWN = 8  # different requests shown one by one
NAMED = 4  # ranks whose host and process are named in one line


def disagreement(
    about: str, requests: Mapping[int, Request], where: Mapping[int, str], missing: Sequence[int]
) -> str:
    """The text of the error that every rank raises.

    Args:
        about: line one.
        requests: rank to its request, of the ranks that came.
        where: rank to its host and process.
        missing: ranks that did not come.

    Example:
        >>> alike, odd = {"sizes": "dp=4 sp=2"}, {"sizes": "dp=2 sp=4"}
        >>> print(disagreement("ranks disagree.", {0: alike, 1: alike, 2: odd}, {2: "host b"}, []))
        ranks disagree.
          ranks 0-1:  dp=4 sp=2
          rank 2 (host b):  dp=2 sp=4
          Fix: pass equal sizes on every rank.
    """
    alike = grouped(requests)
    fields = differing([request for request, _ in alike])
    odd = (ranks for _, ranks in alike[1:])
    names = [
        ranks_named(alike[0][1]),
        *(ranks_named(ranks) + _where(ranks, where) for ranks in odd),
    ]
    lines = [
        f"{name}:  {_shown(request, fields)}"
        for name, (request, _) in zip(names, alike, strict=True)
    ]
    lines[SHOWN:] = [f"and {len(lines) - SHOWN} more."] * (len(lines) > SHOWN)
    late = [f"Not there: {ranks_named(missing)}."] * bool(missing)
    sliced = fields == ["ranks"] and alike[0][0].get("call") == "Mesh.from_device_mesh"
    whole = "hand in the whole DeviceMesh on every rank, and no slice of it."
    return told(about, *lines, *late, fix=whole if sliced else _fix(fields))


def grouped(requests: Mapping[int, Request]) -> list[tuple[Request, list[int]]]:
    """Different requests with their ranks; the one of most ranks first, then by the first rank."""
    found: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for rank in sorted(requests):
        found.setdefault(tuple(sorted(requests[rank].items())), []).append(rank)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[1][0]))
    return [(requests[ranks[0]], ranks) for _, ranks in ordered]


def differing(requests: Sequence[Request]) -> list[str]:
    """The fields in which requests differ, in the order of the first."""
    names = dict.fromkeys(name for request in requests for name in request)
    return [name for name in names if len({request.get(name) for request in requests}) > 1]


def _shown(request: Request, fields: Sequence[str]) -> str:
    """The sizes as they are, then every field that differs."""
    sizes = [request["sizes"]] if "sizes" in request else []
    return ", ".join(sizes + [f"{n}={request.get(n, 'none')}" for n in fields if n != "sizes"])


def ranks_named(ranks: Sequence[int]) -> str:
    """``ranks 0-3 and 5-7``."""
    first, comma, last = format_ranks(ranks).rpartition(", ")
    text = f"{first} and {last}" if comma else last
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {text}"


def _where(ranks: Sequence[int], where: Mapping[int, str]) -> str:
    """Host and process of a few ranks."""
    known = [where[rank] for rank in ranks[:NAMED] if rank in where]
    more = [f"and {len(ranks) - NAMED} more"] * (len(ranks) > NAMED)
    return f" ({'; '.join(known + more)})" if known else ""


def _fix(fields: Sequence[str]) -> str:
    """What to do about each field."""
    if "call" in fields:
        return "make the same calls in the same order on every rank."
    if "job" in fields:
        return "give every job a MASTER_PORT (or init_method) of its own."
    if "open" in fields:
        return "close the same views on every rank, and take new ones from the same mesh."
    if "lent" in fields:
        return "hand in groups over the same axes on every rank."
    if "history" in fields:
        return "make the same groups in the same order on every rank, before this call too."
    versions = [name for name in fields if name in ("meshkit", "torch")]
    if versions:
        return f"install one version of {' and '.join(versions)} on every rank."
    return f"pass equal {' and '.join(fields)} on every rank."
