"""mesh.guard reports collectives that fail or hang, with ranks and coordinates."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import meshkit
from meshkit.groups import close_mesh
from meshkit.guard import guard as guard_module
from meshkit.guard import roll_call, watch
from meshkit.guard.guard import read_exits
from meshkit.guard.state import Guard, GuardState
from meshkit.launch import torch_groups
from meshkit.launch.judges import RankState
from meshkit.launch.store import Store
from meshkit.launch.torch_aborts import timeout_of
from meshkit.launch.world import World
from tests.faults import describe_error, free_address
from tests.promises import BUSY
from tests.resources import threads
from tests.side_by_side import side_by_side

Results = dict[str, Future[list[Any]]]


@pytest.fixture(scope="module")
def results() -> Iterator[Results]:
    """Start the jobs of this file, three at a time since they mostly wait; yield their results."""
    spawn = partial(meshkit.spawn, timeout=120)
    jobs = {
        "hang with a timeout": partial(spawn, sleep_on_one_rank, 4, (6.0, 2.0, None)),
        "hang without a timeout": partial(spawn, sleep_on_one_rank, 4, (10.0, None, 2.0)),
        "error on one rank": partial(spawn, raise_on_one_rank, 4),
        "group of the user": partial(spawn, hang_in_own_group, 2),
        "no fault": partial(spawn, run_without_fault, 2),
        "again": partial(spawn, enter_again_and_fork, 2),
        "hang without error": partial(spawn, hang_without_error, 2),
        "one rank does not close": partial(spawn, close_without_a_rank, 2),
        "no stack": partial(spawn, fail_to_describe_the_stack, 1),
        "skipped": partial(spawn, skip_one_collective, 4, (False,)),
        "skipped at last": partial(spawn, skip_one_collective, 4, (True,)),
        "skipped after errors": partial(spawn, skip_after_caught_errors, 4),
        "many guards": partial(spawn, count_keys, 2),
        "two meshes": partial(spawn, hang_in_two_meshes, 4),
        "late": partial(spawn, come_late, 2),
        "slow to judge": partial(spawn, judge_slowly, 3),
        "tags": partial(spawn, send_with_another_tag, 2),
        "tag of an isend": partial(spawn, sleep_after_a_send_with_another_tag, 2),
        "roots": partial(spawn, broadcast_from_two_roots, 4),
        "stages": partial(spawn, sleep_before_a_send, 3),
        "pipeline": partial(spawn, sleep_in_a_pipeline, 2),
        "wrapped": partial(spawn, raise_from_a_failure, 3),
        "agreement": lambda: spawn(hang_in_an_agreement, 2, (free_address(),)),
        "connection": lambda: spawn(lose_the_store_twice, 2, (free_address(),)),
    }
    with side_by_side(jobs, at_once=3) as futures:
        yield futures


def judge_slowly() -> str:
    """Time out on ranks 0 and 1, of which the latter takes a second to look at its error."""
    mesh = meshkit.build_mesh(dp=3)
    real = guard_module.find_collective_error

    def look(error: BaseException) -> BaseException | None:
        time.sleep(1.2 if mesh.rank == 1 else 0)
        return real(error)

    with mock.patch.object(guard_module, "find_collective_error", look):
        try:
            with mesh.guard(timeout=2):
                if mesh.rank == 2:
                    load_batch(8)
                dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
        except meshkit.CollectiveError as error:
            return str(error)
    return ""


def test_a_rank_that_looks_at_its_error_is_still_in_its_collective(results: Results) -> None:
    for text in results["slow to judge"].result():
        assert "look at rank 2 first" in text
        assert re.search(r"  Ranks 0-1: wait .* in all_reduce over dp, ", text), text


def send_with_another_tag() -> tuple[str, str]:
    """Send a message with another tag than that of its receive."""
    mesh = meshkit.build_mesh(dp=2)
    try:
        with mesh.guard(timeout=2):
            if mesh.rank == 0:
                dist.send(torch.ones(1), 1, tag=3)
                dist.barrier()
            else:
                dist.recv(torch.ones(1), 0, tag=4)
    except meshkit.CollectiveError as error:
        return error.kind, str(error)
    return "", ""


def test_a_send_and_a_receive_with_other_tags_are_a_mismatch(results: Results) -> None:
    for kind, text in results["tags"].result():
        assert kind == "mismatch", text
        assert re.search(r"send to rank 1 over dp, \[1\] float32, tag 3, .*tag 4", text), text


def sleep_after_a_send_with_another_tag() -> tuple[str, tuple[int, ...], str]:
    """Begin a send on rank 1 with another tag than the receive of rank 0, then sleep."""
    mesh = meshkit.build_mesh(dp=2)
    try:
        with mesh.guard(timeout=2):
            if mesh.rank:
                dist.isend(torch.ones(4), 0, tag=3)
                load_batch(12)
            else:
                dist.recv(torch.ones(4), 1, tag=4)
            dist.barrier()
    except meshkit.CollectiveError as error:
        return error.kind, error.root, str(error)
    return "", (), ""


def test_a_rank_that_sleeps_after_a_send_with_another_tag_is_not_busy(results: Results) -> None:
    for kind, root, text in results["tag of an isend"].result():
        assert (kind, root) == ("unknown", ()), text


def broadcast_from_two_roots() -> tuple[str, tuple[int, ...], str]:
    """Broadcast from rank 3 on rank 3, and from rank 0 on all others."""
    mesh = meshkit.build_mesh(dp=2, tp=2)
    try:
        with mesh.guard(timeout=2):
            dist.broadcast(torch.ones(4), 3 if mesh.rank == 3 else 0)
            dist.barrier()
    except meshkit.CollectiveError as error:
        return error.kind, error.root, str(error)
    return "", (), ""


def test_a_broadcast_from_two_roots_is_a_mismatch(results: Results) -> None:
    for kind, root, text in results["roots"].result():
        assert (kind, 3 in root) == ("mismatch", True), text
        assert "rank 3 in broadcast with root 3 over dp tp, [4] float32, begun at test_" in text
        values = r"rank 0 on rank \d \(dp=\d tp=\d\), rank 3 on rank 3 \(dp=1 tp=1\)"
        assert re.search(f"Fix: make the root of broadcast over dp tp equal: {values};", text), text


def sleep_before_a_send() -> tuple[str, tuple[int, ...], str]:
    """Sleep on the second of three stages between its receive and its send."""
    mesh = meshkit.build_mesh(pp=3)
    group, x = mesh.group("pp"), torch.ones(4)
    try:
        with mesh.guard(timeout=2):
            for micro_batch in range(2):
                if mesh.rank > 0:
                    dist.recv(x, mesh.rank - 1, group=group)
                if mesh.rank == 1 and micro_batch == 1:
                    load_batch(12)
                if mesh.rank < 2:
                    dist.send(x, mesh.rank + 1, group=group)
            dist.barrier()
    except meshkit.CollectiveError as error:
        return error.kind, error.root, str(error)
    return "", (), ""


def test_a_stage_that_sleeps_before_its_send_is_busy(results: Results) -> None:
    for kind, root, text in results["stages"].result():
        assert (kind, root) == ("busy", (1,)), text
        line = r"Busy: rank 1 \(pp=1 dp=0\): .*test_guard.py:\d+ \(load_batch\)"
        assert re.search(line, text), text


def sleep_in_a_pipeline() -> tuple[str, tuple[int, ...], str]:
    """Take two steps of torch's pipeline, and sleep between them on the first of two stages."""
    mesh = meshkit.build_mesh(pp=2)
    layer, device = torch.nn.Linear(4, 4), torch.device("cpu")
    stage = PipelineStage(layer, mesh.rank, 2, device, group=mesh.group("pp"))
    schedule = Schedule1F1B(stage, 2, loss_fn=lambda y, target: (y - target).square().mean())
    x = torch.ones(4, 4)
    try:
        with mesh.guard(timeout=2):
            for number in range(2):
                load_batch(12 if number and mesh.rank == 0 else 0)
                schedule.step(*[x] * (mesh.rank == 0), **({"target": x} if mesh.rank else {}))
    except meshkit.CollectiveError as error:
        return error.kind, error.root, str(error)
    return "", (), ""


def test_a_stage_that_waits_in_a_pipeline_of_torch_waits_in_its_receive(results: Results) -> None:
    for kind, root, text in results["pipeline"].result():
        assert (kind, root) == ("busy", (0,)), text
        assert "rank 1 waits in irecv over pp." in text
        receive = r"in irecv from rank 0 over pp, \[2, 4\] float32, begun at test_guard.py:\d+ "
        assert re.search(receive + r"\(sleep_in_a_pipeline\)", text), text


def load_batch(seconds: float) -> None:
    time.sleep(seconds)


def sleep_on_one_rank(seconds: float, timeout: float | None, each: float | None) -> Any:
    """Sleep on rank 2 before its second collective over dp, which one over sp follows."""
    limits = None if each is None else {"dp": each, "sp": each}
    mesh = meshkit.build_mesh(dp=2, sp=2, timeout=limits)
    before = threads()
    began = time.monotonic()
    try:
        with mesh.guard(timeout=timeout):
            for step in range(3):
                if mesh.rank == 2 and step == 1:
                    load_batch(seconds)
                dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
                dist.all_reduce(torch.ones(1), group=mesh.group("sp"))
    except meshkit.CollectiveError as error:
        return describe_error(error), time.monotonic() - began, threads() - before
    return "through"


def test_a_rank_that_hangs_is_behind_and_its_line_is_reported(results: Results) -> None:
    by_rank = results["hang with a timeout"].result()
    texts = {outcome["text"] for outcome, _, _ in by_rank}
    assert len(texts) == 1
    (text,) = texts
    assert re.match(
        r"mesh.guard\(timeout=2\): all_reduce over (dp|sp) failed on rank [013]: ", text
    )
    assert "Behind: rank 0 (dp=0 sp=0) has begun 1 of 2 collectives over sp; " in text
    behind = "Behind: rank 2 (dp=1 sp=0) has begun 1 of 2 collectives over dp; "
    line = r"in no collective, test_guard.py:\d+ \(load_batch\)\."
    assert re.search(re.escape(behind) + line, text), text
    assert re.search(
        r"Ranks 1, 3: wait [\d.]+ s in all_reduce over sp, \[1\] float32, "
        r"begun at test_guard.py:\d+ \(sleep_on_",
        text,
    )
    assert "Fix: look at rank 2 first; then mesh.close(), meshkit.shutdown()" in text
    for rank, (outcome, seconds, left) in enumerate(by_rank):
        assert outcome["kind"] == "CollectiveError"
        assert (outcome["missing"], outcome["behind"]) == ([], [0, 2])
        assert outcome["cause"] == "RuntimeError"
        assert rank == 2 or 2 <= seconds < 2 + 4 + 3 + BUSY
        assert left == 0


def test_without_a_timeout_that_of_the_group_applies_and_a_rank_that_hangs_is_silent(
    results: Results,
) -> None:
    by_rank = results["hang without a timeout"].result()
    outcome, seconds, _ = by_rank[0]
    assert "Busy: rank 2 (dp=1 sp=0): host " in outcome["text"]
    assert outcome["missing"] == [2]
    assert 2 <= seconds < 2 + 4 + BUSY  # before it wakes


class Textless(StopIteration):
    """An error whose text raises another one."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def raise_on_one_rank() -> Any:
    """Raise handled errors on all ranks, then one of rank 1 only; build again after the report."""
    mesh, outcome = meshkit.build_mesh(dp=2, sp=2), "through"
    for error in (StopIteration, Textless):
        with contextlib.suppress(StopIteration), mesh.guard():
            raise error
    try:
        with mesh, mesh.guard(timeout=2):
            if mesh.rank == 1:
                raise ValueError("bad sample 17" + " of many" * 10_000)
            dist.all_reduce(torch.ones(1), group=mesh.group("sp"))
            dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
    except (ValueError, meshkit.CollectiveError) as error:
        outcome = str(error)
    meshkit.shutdown()  # as the Fix says: the default group may be broken too
    with meshkit.build_mesh(dp=2, sp=2) as again, again.guard():
        total = torch.ones(1)
        dist.all_reduce(total, group=again.group())
    return outcome, int(total)


def test_the_error_of_one_rank_is_quoted_and_all_build_again(results: Results) -> None:
    texts = [text for text, total in results["error on one rank"].result() if total == 4]
    assert texts[1] == "bad sample 17" + " of many" * 10_000
    for text in (texts[0], *texts[2:]):
        assert re.search("; left with ValueError: bad sample 17 .{900,1000}\\.\n", text)
        assert "Fix: look at rank 1 first; " in text
        assert "StopIteration" not in text  # a handled error is not reported later


def hang_in_own_group() -> Any:
    """Hang in a collective of a group of the user, for which torch would wait long."""
    mesh = meshkit.build_mesh(dp=2, timeout={"dp": 50})
    own = dist.new_group([0, 1], group_desc="a group of the user")
    printed: list[str] = []
    keep = lambda text, **_: printed.append(str(text))  # noqa: E731
    pytest.MonkeyPatch().setattr(builtins, "print", keep)
    with mesh.guard(timeout=1):
        if mesh.rank == 1:
            load_batch(8)
        dist.all_reduce(torch.ones(1), group=own)
    try:
        with mesh.guard(timeout=3):
            if mesh.rank == 0:
                time.sleep(9)
            dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
    except meshkit.CollectiveError as error:
        return printed, error.behind
    return printed, None


def test_a_hang_in_a_group_of_the_user_is_reported(results: Results) -> None:
    (printed, _), _ = results["group of the user"].result()
    (text,) = printed
    assert "mesh.guard(timeout=1): rank 0 waits in all_reduce over a group of the user." in text
    assert "Rank 1: in no collective, test_guard.py:" in text


def test_after_a_false_alarm_the_next_failure_has_its_own_report(results: Results) -> None:
    """The collective of the group of the user ends well after 8 s; then rank 0 hangs."""
    _, (_, behind) = results["group of the user"].result()
    assert behind == (0,)


def skip_one_collective(at_last: bool) -> Any:
    """Skip a collective over tp on rank 3, in the last of three guards if ``at_last``."""
    mesh = meshkit.build_mesh(dp=2, tp=2)
    try:
        for step in range(3):
            with mesh.guard(timeout=5):
                dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
                if mesh.rank != 3 or step != (2 if at_last else 1):
                    dist.all_reduce(torch.ones(1), group=mesh.group("tp"), async_op=at_last)
    except meshkit.CollectiveError as error:
        return describe_error(error)
    return None


def test_a_rank_that_skips_a_collective_is_named_by_its_count(results: Results) -> None:
    """Rank 2 waits at last, or sees when it leaves that its peer is one collective behind."""
    report = results["skipped"].result()[2]
    assert report["behind"] == [3]
    line = (
        r"Behind: rank 3 \(dp=1 tp=1\) has begun (1 of 2|2 of 3) collectives over tp; "
        r"has left the guard\."
    )
    assert re.search(line, report["text"])
    assert "Busy" not in report["text"]
    assert "outside" not in report["text"]


def test_the_last_rank_to_leave_compares_what_ranks_have_begun(results: Results) -> None:
    """The collective that rank 3 skips is asynchronous, so no rank waits for it."""
    (report,) = filter(None, results["skipped at last"].result())
    assert report["behind"] == [3]
    assert "2 of 3 collectives over tp; has left the guard" in report["text"]


def skip_after_caught_errors() -> Any:
    """Catch errors of single ranks in some guards; then skip a collective over tp on rank 3."""
    mesh, reports = meshkit.build_mesh(dp=2, tp=2), []
    for step in range(7):
        try:
            with mesh.guard(timeout=20):
                if step in (mesh.rank, 3):
                    raise ValueError("caught below")
                if mesh.rank != 3 or step < 5:
                    dist.all_reduce(torch.ones(1), group=mesh.group("tp"), async_op=True)
        except ValueError:
            dist.all_reduce(torch.ones(1), group=mesh.group("tp"), async_op=True)
        except meshkit.CollectiveError as error:
            reports.append((step, describe_error(error)))
        mesh.agree("step", step)
    return reports


def test_a_skipped_collective_is_seen_after_caught_errors(results: Results) -> None:
    """Each of ranks 0 to 2 has left a guard by an error, and all of them the fourth guard."""
    reports = [report for by_rank in results["skipped after errors"].result() for report in by_rank]
    assert min(step for step, _ in reports) == 5
    assert all(report["behind"] == [3] for _, report in reports)


def count_keys() -> list[int]:
    """Return how many keys the store of the job holds, after two guards and after more."""
    mesh, counts = meshkit.build_mesh(dp=2), []
    store: Any = dist.group.WORLD.get_group_store()  # type: ignore[union-attr]
    for step in range(12):
        with contextlib.suppress(ValueError), mesh.guard(timeout=20):
            dist.all_reduce(torch.ones(1), group=mesh.group())
            if step % 3 == mesh.rank:
                raise ValueError("caught here")
        dist.barrier()
        counts.append(store.num_keys())
        dist.barrier()
    return counts


def test_a_guard_leaves_nothing_in_the_store(results: Results) -> None:
    for counts in results["many guards"].result():
        assert counts[2:] == counts[2:3] * 10


@pytest.mark.parametrize(
    ("backends", "expected"),
    [(["gloo", "gloo"], True), (["gloo", "nccl"], False), (["cpu:gloo,cuda:nccl"], False)],
)
def test_only_gloo_raises_in_the_thread_that_waits(
    backends: list[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module.dist, "get_backend", str)
    monkeypatch.setattr(torch_groups, "knows_group", lambda _: True)
    groups: Any = {(backend,): backend for backend in backends}
    site = Guard(meshkit.Layout(dp=2), None, groups, 1, GuardState())  # type: ignore[arg-type]
    assert guard_module._raises_in_caller(site) is expected


def hang_in_two_meshes() -> Any:
    """Hang on rank 3; rank 2 waits in a group of the view, ranks 0 and 1 in one of the mesh."""
    mesh = meshkit.build_mesh(dp=4)
    view = mesh.view(x=2, y=2)
    try:
        with mesh.guard(timeout=5), view.guard(timeout=5):
            if mesh.rank == 3:
                load_batch(12)
            dist.all_reduce(torch.ones(1), group=view.group("y"))
            dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
    except meshkit.CollectiveError as error:
        return describe_error(error)
    return "through"


def test_the_guards_of_a_mesh_and_its_view_make_one_report(results: Results) -> None:
    reports = results["two meshes"].result()
    (text,) = {report["text"] for report in reports}
    assert {tuple(report["behind"]) for report in reports} == {(2, 3)}
    assert "Behind: rank 3 (dp=3) has begun 0 of 1 collectives over" in text
    assert "(load_batch)" in text
    assert (
        "in all_reduce over y, [1] float32, begun at test_guard.py:" in text
    )  # of rank 2, which waits for rank 3
    assert re.search(
        r"Ranks 0-1: wait [\d.]+ s in all_reduce over dp, \[1\] float32, begun at test_guard.py:",
        text,
    )
    assert "Fix: look at rank 3 first;" in text
    assert "Busy" not in text


def come_late() -> Any:
    """Begin a collective on rank 1 just after the others have given up."""
    mesh = meshkit.build_mesh(dp=2)
    if mesh.rank == 1:  # else its watching thread may answer before it begins
        pytest.MonkeyPatch().setattr(watch, "respond", lambda *_: None)
    try:
        with mesh.guard(timeout=2):
            if mesh.rank == 1:
                time.sleep(3)
            dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
    except meshkit.CollectiveError as error:
        return describe_error(error)
    return "through"


def test_a_rank_that_comes_just_before_the_report_was_late(results: Results) -> None:
    report, _ = results["late"].result()
    line = r"Late: rank 1 \(dp=1\) began all_reduce over dp \d+\.\d s after the first\."
    assert re.search(line, report["text"]), report["text"]
    assert "Fix: look at rank 1 first;" in report["text"]


def hang_in_an_agreement(address: str) -> Any:
    """Wait for rank 0 in an agreement, whose client of a TCP store the watching thread shares."""
    meshkit.init(init_method=address, arrival_timeout=60)
    mesh = meshkit.build_mesh(dp=2)
    report = None
    try:
        with mesh.guard(timeout=2 + 58 * mesh.rank):  # in an agreement it ends the wait
            if mesh.rank == 1:
                mesh.agree("plan", 1)
            dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
    except meshkit.CollectiveError as error:
        report = describe_error(error)
    if mesh.rank == 0:
        mesh.agree("plan", 1)
    return report


def test_a_rank_that_waits_in_an_agreement_answers(results: Results) -> None:
    report, _ = results["agreement"].result()
    assert (report["behind"], report["missing"]) == ([1], [])
    assert re.search(r"test_guard.py:\d+ \(hang_in_an_agreement\)", report["text"])
    assert "Busy" not in report["text"]


def lose_the_store_twice(address: str) -> Any:
    """Let two looks of the watching thread of rank 1 at the store fail."""
    meshkit.init(init_method=address, arrival_timeout=60)
    mesh, logged, respond = meshkit.build_mesh(dp=2), [], watch.respond
    faults = iter([meshkit.RankTimeoutError("played.")] * 2 if mesh.rank == 1 else [])

    def fail_first(*args: Any) -> bool:
        for fault in faults:
            raise fault
        return respond(*args)

    patch, keep = pytest.MonkeyPatch(), lambda text, *values: logged.append(text % values)
    patch.setattr(watch, "log_line", keep)
    patch.setattr(watch, "respond", fail_first)
    try:
        with mesh.guard(timeout=4):
            if mesh.rank == 1:
                load_batch(9)
            dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
    except meshkit.CollectiveError as error:
        return describe_error(error), logged
    return "through", logged


def test_a_watching_thread_that_cannot_read_the_store_goes_on(results: Results) -> None:
    (report, _), (_, logged) = results["connection"].result()
    assert (report["behind"], report["missing"]) == ([1], [])
    assert "(load_batch)" in report["text"]
    (line,) = logged  # once, though two looks have failed
    assert line.startswith("the guard of rank 1 goes on after an error: ")


def run_without_fault() -> Any:
    """Return the timeouts in and out of guards, the threads, and whether errors pass unchanged."""
    mesh = meshkit.build_mesh(dp=2, timeout={"dp": 50})
    before = threads()
    group = mesh.group("dp")
    times = [timeout_of(group)]
    with mesh.guard(timeout=7):
        times.append(timeout_of(group))
        with mesh.guard(timeout=3):
            times.append(timeout_of(group))
        times.append(timeout_of(group))
        inside = threads() - before
    times.append(timeout_of(group))
    with mesh.guard():
        times.append(timeout_of(group))
        dist.all_reduce(torch.ones(1), group=group)
    left = threads() - before
    passed = []
    errors = (
        RuntimeError("please set NCCL_DEBUG"),
        RuntimeError("gloo"),
        KeyError("x"),
        SystemExit(3),
    )
    for error in errors:
        try:
            with mesh.guard(timeout=20):
                raise error
        except BaseException as caught:
            passed.append(caught is error)
    with pytest.raises(meshkit.SpecError, match="timeout is 0"):
        mesh.guard(timeout=0)
    return [int(time.total_seconds()) for time in times if time], (inside, left), passed


def test_without_a_fault_timeouts_are_restored_and_errors_of_the_user_pass(
    results: Results,
) -> None:
    for times, num_threads, passed in results["no fault"].result():
        assert times == [50, 7, 3, 7, 50, 50]
        assert num_threads == (1, 0)
        assert passed == [True] * 4


def leave_beside_a_lost_file() -> list[float]:
    """Return the seconds of two guards, and of one with an error, on a file system that hangs."""
    mesh, over, stat = meshkit.build_mesh(dp=2), threading.Event(), os.stat

    def hang(path: Any, *args: Any, **options: Any) -> Any:
        if str(path).endswith("/store"):
            over.wait(60)
        return stat(path, *args, **options)

    seconds = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", hang)
        for error in (None, None, KeyError("of the user")):
            began = time.monotonic()
            with contextlib.suppress(KeyError), mesh.guard(timeout=20):
                time.sleep(0.6)  # the watching thread looks
                if error is not None:
                    raise error
            seconds.append(time.monotonic() - began - 0.6)
        over.set()
    mesh.barrier()
    return seconds


def test_a_file_system_that_hangs_holds_a_guard_for_a_second() -> None:
    """The first guard waits for its watching thread too."""
    for seconds in meshkit.spawn(leave_beside_a_lost_file, 2, timeout=60):
        assert sum(seconds) < 2 + 1 + 1 + BUSY, seconds


class OfTheUser(Exception):
    """An error that a user's loop waits for."""


def raise_from_a_failure() -> tuple[str, str]:
    """Time out on two ranks, which raise other errors from it, as torch's pipelines do."""
    mesh = meshkit.build_mesh(dp=3)
    kind = RuntimeError if mesh.rank == 0 else OfTheUser
    try:
        with mesh.guard(timeout=3):
            if mesh.rank == 2:
                load_batch(9)
            try:
                dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
            except RuntimeError as error:
                raise kind("failed to run stage backward") from error
    except (meshkit.CollectiveError, OfTheUser) as error:
        return type(error).__name__, str(error)
    return "", ""


def test_a_failure_is_reported_if_code_raises_another_error_from_it(results: Results) -> None:
    (first, report), *others = results["wrapped"].result()
    assert first == "CollectiveError"
    assert "Behind: rank 2" in report
    assert "load_batch" in report
    assert others == [("OfTheUser", "failed to run stage backward")] * 2


def enter_again_and_fork() -> Any:
    """Enter one guard three times, and leave it in forked children; return what they did there."""
    mesh = meshkit.build_mesh(dp=2)
    guard, group, codes = mesh.guard(timeout=20), mesh.group("dp"), []
    patch, calls = pytest.MonkeyPatch(), list[object]()

    @guard
    def add() -> float:
        total = torch.ones(1)
        dist.all_reduce(total, group=group)
        return float(total)

    sums = [add()]
    with guard:
        sums.append(add())  # inside itself
    for error in (None, SystemExit(3), ValueError("of the child")):
        parent = os.getpid()
        try:
            with guard:
                if (child := os.fork()) == 0:
                    patch.setattr(guard_module, "_leave", lambda *_: calls.append("left"))
                    patch.setattr(Guard, "post", lambda *_: calls.append("posted"))
                    if error is not None:
                        raise error
                else:
                    codes.append(os.waitpid(child, 0)[1])
                    sums.append(add())
        except BaseException as caught:
            if caught is not error:
                calls.append(caught)
        finally:
            if os.getpid() != parent:
                os._exit(len(calls))
    mesh.barrier(timeout=10)
    return sums, codes


def test_a_guard_is_entered_again_and_a_forked_child_leaves_it_alone(results: Results) -> None:
    for sums, codes in results["again"].result():
        assert sums == [2.0] * 5
        assert codes == [0, 0, 0]


def hang_without_error() -> Any:
    """Wait on all ranks, as for a long compilation; then hang on rank 1. No collective raises."""
    pytest.MonkeyPatch().setattr(guard_module, "_raises_in_caller", lambda site: False)
    aborted: list[str] = []
    mesh = meshkit.build_mesh(dp=2, timeout={"dp": 6})
    group = mesh.group("dp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist.ProcessGroup, "abort", lambda self: aborted.append(self.group_name))
        with mesh.guard(timeout=1):
            time.sleep(3)
        assert not aborted
        try:
            with mesh.guard(timeout=2):
                group.set_timeout(timedelta(seconds=6))  # long after the report
                if mesh.rank == 1:
                    load_batch(9)
                dist.all_reduce(torch.ones(1), group=group)
        except meshkit.CollectiveError as error:
            return describe_error(error), group.group_name in aborted
    return "through", group.group_name in aborted


def test_the_watching_thread_notices_a_hang_that_raises_nothing(results: Results) -> None:
    """As on NCCL, the guard reports and aborts the groups, also after a false alarm."""
    by_rank = results["hang without error"].result()
    outcome, aborted = by_rank[0]
    assert aborted
    line = r"mesh.guard\(timeout=2\): (ranks? [-01]+ waits? for others|ranks begin no collective)\."
    assert re.match(line, outcome["text"]), outcome["text"]
    assert outcome["behind"] == [1]
    assert "(load_batch)" in outcome["text"]


def close_without_a_rank() -> Any:
    """Close a mesh as on NCCL, whose groups end on all ranks together; rank 1 comes late."""
    mesh = meshkit.build_mesh(dp=2, timeout={"dp": 50}, arrival_timeout=2)
    pytest.MonkeyPatch().setattr(close_mesh, "is_destroyed_collectively", lambda groups: True)
    if mesh.rank == 1:
        time.sleep(4)
    began = time.monotonic()
    try:
        mesh.close()
    except meshkit.RankTimeoutError as error:
        return error.missing_ranks, time.monotonic() - began, repr(mesh)
    return None


def test_closing_together_names_the_missing_rank(results: Results) -> None:
    missing, seconds, shown = results["one rank does not close"].result()[0]
    assert (missing, shown[-7:]) == ((1,), "closed)")
    assert seconds < 2 + BUSY


def fail_to_describe_the_stack() -> bool:
    mesh = meshkit.build_mesh(dp=1)
    patch = pytest.MonkeyPatch()
    patch.setattr(watch, "frames_of_thread", mock.Mock(side_effect=TypeError("x")), raising=True)
    with mesh.guard(timeout=30):
        time.sleep(1.5)
        return any(t.name == "meshkit-guard" for t in threading.enumerate())


def test_the_watching_thread_outlives_an_error_of_its_own(results: Results) -> None:
    assert results["no stack"].result() == [True]


def test_rank_0_gives_a_late_rank_a_second_to_read_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 answered long ago, and rank 1 still runs inside its guard."""
    now, waits = [100.0], []

    def stay(limit: float, is_done: Callable[[], bool]) -> None:
        waits.append(is_done())
        now[0] += 1.1
        waits.append(is_done())

    seen = SimpleNamespace(arrived={0: None}, states={1: RankState.BUSY})
    call = SimpleNamespace(arrivals=lambda: seen, store=SimpleNamespace(number=lambda _: 1))
    store: Any = SimpleNamespace(is_host=True, stay=stay, try_within=lambda _, work: work())
    guard: Any = SimpleNamespace(answer_time=4.0, roll_call=lambda *_: call, left=lambda *_: [])
    guard.state = SimpleNamespace(reports={1: "report"}, answered={1: now[0] - 60})
    monkeypatch.setattr(roll_call, "time", SimpleNamespace(monotonic=lambda: now[0]))
    roll_call._leave_last(guard, store)
    assert waits == [False, True]


class CountedStore(Store):
    """A store of one process that counts its operations."""

    def __init__(self, root: dist.Store) -> None:
        super().__init__(root, World(0, 1, None, None, None, None, None, None, "test"))
        self.operations = 0

    @property
    def raw(self) -> dist.Store:
        self.operations += 1
        return super().raw


def test_the_last_rank_reads_the_exits_of_all_in_two_operations() -> None:
    """It does so in each step; one by one these are two operations for each rank."""
    store = CountedStore(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    for rank in range(100):
        store.set(f"exit/{rank}", json.dumps({"begun": {"dp": rank}}))
    before = store.operations
    exits = read_exits(store, range(100))
    assert store.operations == before + 2
    assert exits == {rank: {"begun": {"dp": rank}} for rank in range(100)}
    assert read_exits(store, [99, 100]) == {99: {"begun": {"dp": 99}}, 100: {}}
