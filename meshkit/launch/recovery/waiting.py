"""Find the processes that wait at the store with the numbers of lost ranks, and admit them.

They wait in the newest generation, which they have begun, for ranks that never come.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import torch.distributed as dist

from ..agreement.admission import Admission, post_invitation
from ..agreement.disagreement import disagreement_error
from ..current_job import Job, Origin
from ..store import keys
from ..store.check_in import CheckIn, read_check_ins
from ..store.error_json import error_to_json
from ..store.foreign_value import read_number, read_value
from ..store.rank_lease import LeaseHolder, end_generation, read_lease_holders
from .rejoin import RECOVERIES, origin_of

CONFLICT = "a new process disagrees with the job that runs, which goes on without it."


def find_newcomers(job: Job) -> tuple[int, dict[int, LeaseHolder]]:
    """Return the generation in which newcomers wait, and the process of each by its number.

    Newcomers whose process has ended are left out. If a newcomer called ``init`` with other
    arguments than this job, all that wait with it raise, and none is returned.

    Cost: one store operation if no process has come since the last look, else about 6.
    """
    origin = origin_of(job)
    base = origin.base
    newest = read_number(keys.NEWEST, base.get(keys.NEWEST))
    join_round = dist.PrefixStore(keys.JOIN_ROUND.format(newest), base)
    if newest == origin.generation or join_round.check([keys.DECISION]):
        return newest, {}
    check_ins = read_check_ins(join_round, origin.lost)
    if check_ins and not _agree(job, origin, join_round, check_ins):
        return newest, {}
    holders = read_lease_holders(origin.store, [*check_ins])
    runs = {r: h for r, h in holders.items() if h.generation == newest and h.runs() is not False}
    return newest, runs


def _agree(
    job: Job, origin: Origin, join_round: dist.Store, check_ins: Mapping[int, CheckIn]
) -> bool:
    """Return whether newcomers have called ``init`` as this job did; else refuse them."""
    base = origin.base
    text = dist.PrefixStore(keys.JOIN_ROUND.format(origin.generation), base).get(keys.REQUEST)
    first = CheckIn.from_json(read_value(keys.REQUEST, text, lambda line: json.loads(line)[-1]))
    if all(_comparable(one) == _comparable(first) for one in check_ins.values()):
        return True
    error = disagreement_error(
        CONFLICT, {int(origin.ranks[job.world.rank]): first, **check_ins}, []
    )
    join_round.compare_set(keys.DECISION, "", error_to_json(error))
    return False


def _comparable(check_in: CheckIn) -> dict[str, str]:
    """Return the request without the name of the launcher's job, which a new process lacks."""
    return {name: value for name, value in check_in.request.items() if name != "job"}


def invite(job: Job, waiting_in: int, number: int, admission: Admission) -> None:
    """Admit newcomers in a recovery round: write it for all ranks, and then for the newcomers.

    Cost: 6 store operations.
    """
    origin = origin_of(job)
    base = origin.base
    recovery = dist.PrefixStore(keys.RECOVERY.format(number), origin.store)
    recovery.set(keys.ADMISSION, admission.to_json())
    ranks = [*admission.first_ranks[admission.num_ranks :]]
    post_invitation(base, waiting_in, origin.generation, number, ranks)
    end_generation(base, waiting_in)


def next_recovery(job: Job) -> int:
    """Return the number of the next recovery that no rank has begun. Cost: a store operation."""
    origin, counter = origin_of(job), cast("dict[str, int]", job.counter)
    number = counter[RECOVERIES] + 1
    while dist.PrefixStore(keys.RECOVERY.format(number), origin.store).check([keys.BEGUN]):
        number += 1
    return number
