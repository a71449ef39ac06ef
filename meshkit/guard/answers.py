"""Answer the question of a client outside the job: ``meshkit status``."""

from __future__ import annotations

from functools import partial
from typing import cast

from ..launch.disagreement import RankStatus
from ..launch.outside import ANSWER, ASK, Answer, answer_to_json
from ..launch.process import current_process
from ..launch.store import Store
from ..launch.times import TIMES
from .state import Guard


def answer_outside(guard: Guard, status: RankStatus) -> None:
    """Answer the question of a client outside, once. Local.

    Cost: one store operation without a question, else three.
    """
    job = cast(Store, guard.job.store)
    asked = None if job.is_file else job.within(TIMES.store, partial(job.read, ASK, str))
    if asked and asked != guard.state.asked:
        guard.state.asked = asked
        text = answer_to_json(asked, Answer(guard.layout, current_process(), status))
        job.within(TIMES.store, lambda: job.set(ANSWER.format(guard.rank), text))
