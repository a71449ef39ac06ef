"""The error of ranks that did not arrive in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...core.errors import CALL, RankTimeoutError
from ...core.hang import RankState as Life
from ...core.text import format_ranks, plural
from ..store.check_in import CheckIn
from ..store.rank_lease import LeaseHolder

MAX_NAMES = 8  # ranks or hosts that an error names one by one
MAX_RANKS = 100_000  # missing ranks that an error lists as an attribute
MAX_RANGES = 100  # ranges of ranks in a text
STATES = {Life.ENDED: "has ended", Life.STOPPED: "is stopped"}


def missing_ranks_error(
    stage: str,
    seconds: float,
    check_ins: Mapping[int, CheckIn],
    missing: Sequence[int],
    describe_rank: Callable[[int], str] | None,
    *evidence: str,
    holders: Mapping[int, LeaseHolder] | None = None,
) -> RankTimeoutError:
    """Return the error that names the ranks that did not arrive.

    Ranks that have ended or are stopped come first. The other ranks are then only late.
    """
    lives = {rank: holder.life() for rank, holder in (holders or {}).items()}
    certain = {rank: lives[rank] for rank in missing if rank in lives and lives[rank].is_certain}
    reasons = [*certain] or missing
    coordinates = {
        r: f" ({describe_rank(r)})" if describe_rank else "" for r in reasons[:MAX_NAMES]
    }
    states = {rank: f" {STATES[life]}" for rank, life in certain.items()}
    names = [f"{r}{where}{states.get(r, '')}" for r, where in coordinates.items()]
    more = [f"and {len(reasons) - len(names)} more"] * (len(reasons) > len(names))
    hosts = first_few(sorted({check_in.process.host for check_in in check_ins.values()}))
    on_hosts = f" on {plural('host', len(hosts))} {', '.join(hosts)}" if hosts else ""
    late = [rank for rank in missing if rank not in certain] if certain else []
    others = (
        f"{plural('Rank', len(late))} {shorten_ranks(late)}: late, and not known to have ended."
    )
    return RankTimeoutError(
        f"{len(missing)} of {len(check_ins) + len(missing)} ranks did not arrive at {stage}{CALL} "
        f"within {seconds:g} s.",
        f"Missing: {', '.join([*names, *more])}. Arrived: {shorten_ranks(sorted(check_ins))}"
        f"{on_hosts}.",
        *[others] * bool(late),
        *evidence,
        fix=f"look at the logs of {plural('rank', len(reasons))} {shorten_ranks(reasons)} first.",
        missing_ranks=tuple(reasons[:MAX_RANKS]),
    )


def shorten_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as text, the ranges after the first hundred as a number of ranks."""
    ranges = format_ranks(ranks).split(", ")
    if len(ranges) <= MAX_RANGES:
        return ", ".join(ranges)
    return f"{', '.join(ranges[:MAX_RANGES])}, and more, {len(ranks)} in all"


def first_few(names: list[str]) -> list[str]:
    """Return the first few names, and how many more there are."""
    more = len(names) - MAX_NAMES
    return [*names[:MAX_NAMES], f"and {more} more"] if more > 0 else names


def absent_hosts(expected: Sequence[str], check_ins: Mapping[int, CheckIn]) -> list[str]:
    """Return a line on the hosts without check-ins, if the launcher and the hosts use one name."""
    names = {check_in.process.host.partition(".")[0] for check_in in check_ins.values()}
    absent = [host for host in expected if host.partition(".")[0] not in names]
    known = absent and len(absent) < len(expected)
    hosts = f"{plural('host', len(absent))} {', '.join(first_few(absent))}"
    return [f"No rank came from {hosts}."] * bool(known)
