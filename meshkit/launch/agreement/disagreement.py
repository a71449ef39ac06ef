"""The errors of ranks whose requests differ, and of a rank whose own call failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.errors import CALL, DisagreementError, MeshkitError
from ...core.text import format_sizes
from ..store.check_in import CheckIn, ProcessIdentity


def disagreement_error(
    summary: str, check_ins: Mapping[int, CheckIn], missing: Sequence[int]
) -> DisagreementError:
    """Return the error of ranks whose requests differ."""
    from ...core.compare import describe_disagreement, group_equal_requests

    requests = {rank: check_in.request for rank, check_in in check_ins.items()}
    processes = {rank: str(check_in.process) for rank, check_in in check_ins.items()}
    evidence, fix = describe_disagreement(requests, processes, missing)
    by_rank = {
        rank: format_sizes(request)
        for request, ranks in group_equal_requests(requests)
        for rank in ranks
    }
    return DisagreementError(summary, *evidence, fix=fix, requests=by_rank)


def failure_report(summary: str, rank: int, error: BaseException) -> DisagreementError:
    """Return the error that the other ranks raise when a rank's own call failed."""
    if isinstance(error, MeshkitError):
        # the call of the failed rank, not of the rank that raises the report
        call = "this call" if error.call is None else str(error.call)
        reason, fix = error.headline, error.fix_text
        evidence = tuple(line.replace(CALL, call) for line in error.evidence)
    else:
        reason, *rest = str(error).splitlines() or [""]
        evidence, fix = tuple(line.strip() for line in rest), ""
    reason = f"{type(error).__name__}: {reason}"
    return DisagreementError(
        summary,
        f"rank {rank} ({ProcessIdentity.current()}) gave up: {reason}",
        *evidence,
        fix=fix or f"look at the log of rank {rank} first.",
        requests={rank: reason},
    )
