"""The decision of a round in which ranks differ, are missing, or failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from ..store import keys
from ..store.check_in import CheckIn, read_check_ins
from ..store.deadline import Deadline
from ..store.error_json import error_to_json
from ..store.rank_lease import last_seen
from .disagreement import disagreement_error
from .missing_ranks import absent_hosts, missing_ranks_error
from .proposal import Participants, Proposal

ALL = "all"  # the decision when every rank has checked in with the same request


def judge(
    proposal: Proposal, participants: Participants, deadline: Deadline, store: dist.Store
) -> str:
    """Return the decision about the ranks that have arrived at the store of a round."""
    ranks = participants.ranks
    check_ins = read_check_ins(store, ranks)
    missing = [rank for rank in ranks if rank not in check_ins]
    conflict = json.loads(store.get(keys.CONFLICT)) if store.check([keys.CONFLICT]) else {}
    differ = len({str(check_in.request) for check_in in check_ins.values()}) > 1
    if differ or "dissent" in conflict:  # a rank of another world size is not among our ranks
        check_ins |= _dissenting(conflict) if "dissent" in conflict else {}
        return error_to_json(disagreement_error(proposal.conflict_summary, check_ins, missing))
    if "claim" in conflict:
        return str(conflict["claim"])
    if not missing:
        return str(conflict.get("failure", ALL))
    seen = last_seen(participants.store, participants.world.rank, missing)
    error = missing_ranks_error(
        proposal.stage,
        deadline.timeout.total_seconds(),
        check_ins,
        missing,
        proposal.describe_rank,
        *[f"Last seen: {'; '.join(seen)}."] * bool(seen),
        *absent_hosts(proposal.expected_hosts(), check_ins),
    )
    return error_to_json(error)


def judge_late(proposal: Proposal, conflict: Mapping[str, Any]) -> str:
    """Return the decision for a rank that differs from ranks that have agreed without it."""
    return error_to_json(disagreement_error(proposal.conflict_summary, _dissenting(conflict), []))


def _dissenting(conflict: Mapping[str, Any]) -> dict[int, CheckIn]:
    """Return the check-ins of the two ranks whose requests differ."""
    return {rank: CheckIn.from_json(check_in) for rank, check_in in conflict["dissent"]}
