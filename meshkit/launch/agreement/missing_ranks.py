"""The error of ranks that did not arrive in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...core.errors import CALL, RankTimeoutError
from ...core.text import format_ranks, plural
from ..store.check_in import CheckIn

MAX_NAMES = 8  # ranks or hosts that an error names one by one


def missing_ranks_error(
    stage: str,
    seconds: float,
    check_ins: Mapping[int, CheckIn],
    missing: Sequence[int],
    describe_rank: Callable[[int], str] | None,
    *evidence: str,
) -> RankTimeoutError:
    """Return the error that names the ranks that did not arrive."""
    names = first_few([f"{r} ({describe_rank(r)})" if describe_rank else str(r) for r in missing])
    hosts = first_few(sorted({check_in.process.host for check_in in check_ins.values()}))
    on_hosts = f" on {plural('host', len(hosts))} {', '.join(hosts)}" if hosts else ""
    return RankTimeoutError(
        f"{len(missing)} of {len(check_ins) + len(missing)} ranks did not arrive at {stage}{CALL} "
        f"within {seconds:g} s.",
        f"Missing: {', '.join(names)}. Arrived: {format_ranks(sorted(check_ins))}{on_hosts}.",
        *evidence,
        fix=f"look at the logs of {plural('rank', len(missing))} {format_ranks(missing)} first.",
        missing_ranks=tuple(missing),
    )


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
