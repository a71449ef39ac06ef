"""The evidence and the fix of ranks whose requests differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..text import name_ranks, shorten

Request = Mapping[str, str]  # field to its value as text; equal requests mean equal calls

MAX_REQUESTS = 8  # different requests shown one by one
MAX_HOSTS = 4  # ranks with host and process in one line

VERSIONS = "install one version of meshkit and of torch on every rank."
FIXES = {  # the fix of a field; a field before others is their cause
    "call": "make the same calls in the same order on every rank.",
    "job": "give every job its own MASTER_PORT (or init_method).",
    "open": "close the same views on every rank, and create new ones from the same mesh.",
    "external": "pass groups over the same axes on every rank.",
    "history": "create the same groups in the same order on every rank, also before this call.",
    "meshkit": VERSIONS,
    "torch": VERSIONS,
}
ALONE = {  # the fix of a field if no other one differs
    "ranks": "pass equal ranks on every rank; of a DeviceMesh, the whole mesh and not a slice.",
    "seed": "pass the same seed on every rank, or seed='shared', which rank 0 draws for all.",
}


def describe_disagreement(
    requests: Mapping[int, Request], processes: Mapping[int, str], missing: Sequence[int]
) -> tuple[list[str], str]:
    """Return the evidence and the fix of the error that every rank raises."""
    groups = group_equal_requests(requests)
    fields = differing_fields([request for request, _ in groups])
    names = [name_ranks(ranks) for _, ranks in groups]
    names[1:] = [name_ranks(ranks) + _format_hosts(ranks, processes) for _, ranks in groups[1:]]
    lines = [
        f"{name}:  {_format_request(request, fields)}"
        for name, (request, _) in zip(names, groups, strict=True)
    ]
    absent = [f"Missing: {name_ranks(missing)}."] * bool(missing)
    return [*shorten(lines, MAX_REQUESTS, "."), *absent], _suggest_fix(fields)


def group_equal_requests(requests: Mapping[int, Request]) -> list[tuple[Request, list[int]]]:
    """Return the different requests with their ranks; most ranks first, then by first rank."""
    ranks_of: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for rank in sorted(requests):
        ranks_of.setdefault(tuple(sorted(requests[rank].items())), []).append(rank)
    ordered = sorted(ranks_of.items(), key=lambda item: (-len(item[1]), item[1][0]))
    return [(requests[ranks[0]], ranks) for _, ranks in ordered]


def differing_fields(requests: Sequence[Request]) -> list[str]:
    """Return the fields in which requests differ, in the order of the first request."""
    names = dict.fromkeys(name for request in requests for name in request)
    return [name for name in names if len({request.get(name) for request in requests}) > 1]


def _format_request(request: Request, fields: Sequence[str]) -> str:
    """Return the sizes, then every field that differs."""
    sizes = [request["sizes"]] if "sizes" in request else []
    return ", ".join(sizes + [f"{n}={request.get(n, 'none')}" for n in fields if n != "sizes"])


def _format_hosts(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    """Return the hosts and processes of the first ranks."""
    known = [hosts[rank] for rank in ranks[:MAX_HOSTS] if rank in hosts]
    more = [f"and {len(ranks) - MAX_HOSTS} more"] * (len(ranks) > MAX_HOSTS)
    return f" ({'; '.join(known + more)})" if known else ""


def _suggest_fix(fields: Sequence[str]) -> str:
    """Return the fix of the first field that has its own, else one that names all fields."""
    own = [fix for field, fix in FIXES.items() if field in fields]
    own += [ALONE[field] for field in fields if len(fields) == 1 and field in ALONE]
    return own[0] if own else f"pass equal {' and '.join(fields)} on every rank."
