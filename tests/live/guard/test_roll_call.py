"""The roll call of one rank, at a store in memory in which the other rank is played."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

import meshkit
from meshkit.core.hang import RankStatus
from meshkit.launch.current_job import Job
from meshkit.launch.store.check_in import ProcessIdentity
from meshkit.launch.store.keys import GENERATION
from meshkit.launch.store.rank_lease import LeaseHolder
from meshkit.live.guard import roll_call
from meshkit.live.guard.roll_call import GuardContext, GuardState, post_status, report_failure


def context_of_rank_1(holder_of_rank_0: LeaseHolder) -> GuardContext:
    """Return the context of rank 1 of 2."""
    base, world = dist.HashStore(), meshkit.detect({"RANK": "1", "WORLD_SIZE": "2"})
    base.set("meshkit/lease/0", json.dumps(holder_of_rank_0._asdict()))
    store = dist.PrefixStore(GENERATION.format(1), base)
    job = Job(world, store, None, timedelta(seconds=60), 1, None)
    return GuardContext(meshkit.Layout(dp=2), job, {}, 1, GuardState())


def test_a_rank_on_another_host_has_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host cannot know whether that rank runs. It answers after the first look."""
    far = LeaseHolder(ProcessIdentity("another-host", 7), "its boot and namespace 9", "c")
    context = context_of_rank_1(far)
    keys = context.keys
    assert keys is not None

    def answer(seconds: float) -> None:
        post_status(keys, RankStatus(0, {"dp": 1}), call_id=1)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=answer)
    monkeypatch.setattr(roll_call, "time", clock)
    report = report_failure(context, "all_reduce failed.", RankStatus(1, {"dp": 2}))
    assert isinstance(report, meshkit.CollectiveError)
    assert (report.missing_ranks, report.behind) == ((), (0,))


def test_the_answer_to_an_earlier_roll_call_is_out_of_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A roll call ended without a report. Both ranks have begun two more collectives since."""
    context = context_of_rank_1(LeaseHolder(ProcessIdentity("another-host", 7), "9", "c"))
    keys = context.keys
    assert keys is not None
    keys.add("calls", 1)
    post_status(keys, RankStatus(0, {"dp": 1}), call_id=1)
    keys.set("report/1", json.dumps(""))

    def answer(seconds: float) -> None:
        post_status(keys, RankStatus(0, {"dp": 3}), call_id=2)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=answer)
    monkeypatch.setattr(roll_call, "time", clock)
    assert report_failure(context, "", RankStatus(1, {"dp": 3})) is None
