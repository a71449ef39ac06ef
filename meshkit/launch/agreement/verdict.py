"""The decision of a round in which ranks differ, are missing, or failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from ...core.text import format_ranks, plural
from ..store import keys
from ..store.check_in import CheckIn, read_check_ins
from ..store.deadline import Deadline
from ..store.error_json import error_from_json, error_to_json
from ..store.foreign_value import read_value
from ..store.rank_lease import last_seen, read_lease_holders
from .disagreement import disagreement_error
from .missing_ranks import absent_hosts, missing_ranks_error
from .proposal import Participants, Proposal

MAX_LOOKED = 64  # missing ranks whose process is looked at


def judge(
    proposal: Proposal,
    participants: Participants,
    deadline: Deadline,
    store: dist.Store,
    late: tuple[int, ...] = (),
) -> str:
    """Return the decision about the ranks that have arrived at the store of a round.

    Ranks that have come while it was made are late, and not missing.
    """
    ranks = participants.ranks
    check_ins = read_check_ins(store, ranks)
    missing = [rank for rank in ranks if rank not in check_ins]
    conflict: dict[str, Any] = {}
    if store.check([keys.CONFLICT]):
        conflict = read_value(keys.CONFLICT, store.get(keys.CONFLICT), _parse_conflict)
    differ = len({str(check_in.request) for check_in in check_ins.values()}) > 1
    if differ or "dissent" in conflict:  # a rank of another world size is not among our ranks
        check_ins |= _dissenting(conflict) if "dissent" in conflict else {}
        return error_to_json(disagreement_error(proposal.conflict_summary, check_ins, missing))
    if "claim" in conflict:
        return str(conflict["claim"])
    if not missing:
        return str(conflict.get("failure", keys.ALL))
    holders = read_lease_holders(participants.store, missing[:MAX_LOOKED])
    seen = last_seen(participants.store, participants.world.rank, missing)
    now = read_check_ins(store, missing)  # a busy machine takes time for the look at all ranks
    if now and not late:
        return judge(proposal, participants, deadline, store, late=tuple(now))
    came = f"{plural('Rank', len(late))} {format_ranks(late)} came late, after {deadline}."
    error = missing_ranks_error(
        proposal.stage,
        deadline.timeout.total_seconds(),
        check_ins,
        missing,
        proposal.describe_rank,
        *[f"Last seen: {'; '.join(f'{r} on {line}' for r, line in seen.items())}."] * bool(seen),
        *[came] * bool(late),
        *absent_hosts(proposal.expected_hosts(), check_ins),
        holders=holders,
    )
    return error_to_json(error)


def judge_late(proposal: Proposal, conflict: Mapping[str, Any]) -> str:
    """Return the decision for a rank that differs from ranks that have agreed without it."""
    return error_to_json(disagreement_error(proposal.conflict_summary, _dissenting(conflict), []))


def _dissenting(conflict: Mapping[str, Any]) -> dict[int, CheckIn]:
    """Return the check-ins of the two ranks whose requests differ."""
    return {int(rank): CheckIn.from_json(check_in) for rank, check_in in conflict["dissent"]}


def _parse_conflict(text: str) -> dict[str, Any]:
    """Return a conflict that a rank has posted. Each of its parts can be read."""
    conflict: dict[str, Any] = dict(json.loads(text).items())
    if "dissent" in conflict:
        _dissenting(conflict)
    for name in ("claim", "failure"):
        if name in conflict:
            error_from_json(conflict[name])
    if not conflict.keys() & {"dissent", "claim", "failure"}:
        raise ValueError(text)
    return conflict
