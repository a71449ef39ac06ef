"""Guard, close, commit, recover, admit and restore with the semantics of NCCL."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch import torch_aborts
from meshkit.launch.job import require_job
from meshkit.launch.times import TIMES
from meshkit.layout import ranks
from meshkit.recover import restore
from meshkit.redistribute.mover import Channel
from meshkit.testing.faults import Played, Strike, play
from tests import nccl_like
from tests.promises import BUSY

HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
LIMIT = 2.0  # seconds of a guard
ANSWER = 4.0  # seconds of a roll call


def join(backend: str = nccl_like.NAME, **options: Any) -> meshkit.World:
    """Join the job on the stand-in."""
    nccl_like.register()
    options = {"timeout": 60, "arrival_timeout": 20} | options
    return meshkit.init(backend=backend, device="cpu", **options)


def total(mesh: meshkit.Mesh, *axes: str) -> float:
    """Return the sum of the ranks over some axes."""
    tensor = torch.full((3,), float(mesh.rank))
    dist.all_reduce(tensor, group=mesh.group(*axes))
    return tensor[0].item()


# ------------------------------------------------------------ the stand-in itself


def try_semantics(strike: Strike, kind: str, handling: str) -> Any:
    """Meet one of NCCL's semantics without meshkit."""
    os.environ[HANDLING] = handling
    nccl_like.register()
    init = {"rank": strike.rank, "world_size": 2, "init_method": f"file://{strike.folder}/own"}
    limit = timedelta(seconds=30 if kind in ("messages", "each") else 2)
    dist.init_process_group(nccl_like.NAME, timeout=limit, **init)  # type: ignore[arg-type]
    second = dist.new_group([0, 1])
    strike.note()
    tensor, peer = torch.ones(2), 1 - strike.rank
    if kind == "messages":
        got = torch.zeros(2)
        operations = dist.P2POp(dist.isend, tensor + 1, peer), dist.P2POp(dist.irecv, got, peer)
        for work in dist.batch_isend_irecv([*operations]):
            work.wait()
        dist.isend(tensor, peer)
        with pytest.raises(RuntimeError, match="batch_isend_irecv"):
            dist.irecv(torch.ones(2), peer)
        time.sleep(2)  # until the peer has begun its send, too
        return got.tolist()
    if strike.rank == 1:
        time.sleep(6)
        return "slept"
    dist.all_reduce(tensor, group=second)  # returns at once
    if kind == "idle":
        with pytest.raises(dist.DistBackendError, match="abort timed out"):
            dist.group.WORLD.abort()  # type: ignore[union-attr]
        return nccl_like.ABORTED
    if kind == "each":
        began = time.monotonic()
        late = torch_aborts.abort_all_groups(5)
        return tensor.tolist(), len(nccl_like.ABORTED), late, time.monotonic() - began < 1
    return tensor.tolist()  # waits, and the watchdog ends the process


SEMANTICS = [
    ("messages", "3", "[2.0, 2.0]"),
    ("idle", "0", "[]"),
    ("each", "0", f"({[nccl_like.GARBAGE] * 2}, 2, [], True)"),
    ("watchdog", "3", "SIGABRT"),
    ("watchdog", "0", "running"),
]


@pytest.mark.parametrize(("kind", "handling", "first"), SEMANTICS)
def test_the_stand_in_behaves_as_torch_documents_it(
    kind: str, handling: str, first: str, played: Played
) -> None:
    ended = played.outcomes[0].text if 0 in played.outcomes else played.ends[0]
    assert ended == first, played


# ------------------------------------------------------------ a healthy job


def use_groups(strike: Strike) -> Any:
    """Build, compute, view, compare and close; ranks destroy each group together."""
    join()
    mesh = meshkit.build_mesh(dp=2, tp=2)
    view = mesh.view(x=4)
    sums = total(mesh, "dp"), total(mesh, "tp"), total(view)
    mesh.barrier()
    mesh.verify(timeout=20)
    mesh.agree("lr", 0.1)
    for _ in range(2):
        mesh.commit()
    moved = mesh.redistribute(torch.ones(4), "a/dp -> a").tolist()
    # NCCL reads the ids of later communicators under this timeout
    wait = dist.group.WORLD.get_group_store().timeout.total_seconds()  # type: ignore[union-attr]
    time.sleep(0.3 * mesh.rank)
    view.close()
    mesh.close()
    meshkit.shutdown()
    return sums, moved, wait, len(nccl_like.LIVE), nccl_like.ABORTED


def test_a_healthy_mesh_computes_commits_and_closes(played: Played) -> None:
    sums = [(2.0, 1.0, 6.0), (4.0, 1.0, 6.0), (2.0, 5.0, 6.0), (4.0, 5.0, 6.0)]
    expected = {rank: str((sums[rank], [1.0] * 8, 60.0, 0, [])) for rank in range(4)}
    assert {rank: outcome.text for rank, outcome in played.outcomes.items()} == expected


def wait_for_rank_3(mesh: meshkit.Mesh) -> None:
    """Begin collectives in a guard, to which rank 3 comes too late."""
    with mesh.guard(timeout=LIMIT):
        time.sleep(2 * LIMIT + ANSWER if mesh.rank == 3 else 0)
        total(mesh, "dp"), total(mesh, "tp"), total(mesh)


def join_again(strike: Strike, ending: str) -> Any:
    """Join, build a mesh by splits and leave, three times; the first time by a failure."""
    nccl_like.Group.bound_device_id = torch.device("cuda:0")  # type: ignore[assignment]
    sums = []
    for number in range(3):
        join()
        mesh = meshkit.build_mesh(dp=2, tp=2)
        sums.append((total(mesh, "dp"), total(mesh, "tp"), total(mesh)))
        if ending == "failure" and not number:
            with pytest.raises(meshkit.CollectiveError):
                wait_for_rank_3(mesh)
        mesh.close()
        meshkit.shutdown()
    return sums


@pytest.mark.parametrize("ending", ["order", "failure"])
def test_a_process_joins_again_and_splits_its_groups(ending: str, played: Played) -> None:
    sums = [(2.0, 1.0, 6.0), (4.0, 1.0, 6.0), (2.0, 5.0, 6.0), (4.0, 5.0, 6.0)]
    assert {rank: outcome.text for rank, outcome in played.outcomes.items()} == {
        rank: str([sums[rank]] * 3) for rank in range(4)
    }, played


# ------------------------------------------------------------ a hang and a loss


def fail_in_guard(strike: Strike, fault: str) -> Any:
    """Lose or delay rank 3 in a guard; return the report, and how the groups were aborted."""
    if fault == "kill":  # torch 2.15 has another engine for nccl
        nccl_like.Group.engine = nccl_like.Device2
    join()
    mesh = meshkit.build_mesh(dp=2, tp=2)
    total(mesh)
    try:
        with mesh, mesh.guard(timeout=LIMIT):
            if mesh.rank == 3:
                strike.kill() if fault == "kill" else strike.stop()
            total(mesh, "dp"), total(mesh, "tp")
            total(mesh)  # the next call after an abort raises
    except meshkit.CollectiveError as error:
        meshkit.shutdown()
        return error.missing_ranks, len(nccl_like.ABORTED), len(nccl_like.LIVE)
    return "through"


@pytest.mark.parametrize("fault", ["stop", "kill"])
def test_a_guard_names_the_rank_before_the_watchdog_ends_the_process(
    fault: str, played: Played
) -> None:
    assert played.fired == 3
    for rank in range(3):
        groups = 4  # the default group, dp, tp, and that of one rank
        missing, aborted, left = eval(played.outcomes[rank].text)
        assert (missing, aborted, left) == ((3,), groups, 0), (rank, played)
        assert played.seconds(rank) < 2 * LIMIT + ANSWER + BUSY


BESIDE_GLOO = ("mesh", "axis", "view", "edges", "later dim")


def lose_a_peer_beside_gloo(strike: Strike, kind: str) -> Any:
    """Lose rank 1 in a collective of the stand-in, in a job whose default group is of gloo."""
    join("gloo")
    before = os.environ.get(HANDLING)
    mesh = meshkit.build_mesh(dp=2, backend={"mesh": nccl_like.NAME}.get(kind), timeout=4)
    if kind == "axis":
        mesh = meshkit.build_mesh(dp=2, tp=1, backend={"dp": nccl_like.NAME}, timeout=4)
    elif kind == "view":
        mesh = mesh.view(x=2, backend=nccl_like.NAME, timeout=4)
    group = mesh.group()
    if kind == "edges":
        mesh = meshkit.build_mesh(dp=2, backend={"dp": nccl_like.NAME}, timeout=4)
        group = mesh.edges("dp")[0, 1]
    elif kind == "later dim":
        override = {"x": (nccl_like.NAME, None)}
        device_mesh = meshkit.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        group = device_mesh._unflatten(0, (2,), ("x",), backend_override=override).get_group("x")
    handling = group.handling  # type: ignore[attr-defined]
    if mesh.rank == 1:
        strike.kill()
    dist.all_reduce(torch.ones(1), group=group)
    time.sleep(6)  # else the watchdog ends the process after 4 s
    require_job().abort()
    meshkit.shutdown()
    return before, handling, os.environ.get(HANDLING)


@pytest.mark.parametrize("kind", BESIDE_GLOO)
def test_the_watchdog_ends_no_process_whose_default_group_is_of_gloo(
    kind: str, played: Played
) -> None:
    assert played.outcomes[0].text == str((None, 0, None)), played


def sleep_before_two_axes(strike: Strike) -> Any:
    """Sleep on rank 3, for which rank 1 waits over dp, and read each sum before the next one."""
    join()
    mesh = meshkit.build_mesh(dp=2, tp=2)
    total(mesh)
    text = "through"
    try:
        with mesh.guard(timeout=LIMIT):
            if mesh.rank == 3:
                strike.note()
                time.sleep(3 * LIMIT + ANSWER)
            total(mesh, "dp"), total(mesh, "tp")
    except meshkit.CollectiveError as error:
        text = str(error)
    meshkit.shutdown()
    return text


def test_a_rank_that_waits_outside_torch_is_not_taken_for_the_cause(played: Played) -> None:
    for rank in range(3):
        text = eval(played.outcomes[rank].text)
        assert "look at rank 3 first" in text, text
        assert "Behind: rank 1 (dp=0 tp=1) has begun 0 of 1 collectives over tp; waits" in text


def close_after_report(strike: Strike, fault: str) -> Any:
    """Close, shut down and begin anew after a report; return the seconds of the two calls."""
    backend = "gloo" if fault == "on gloo" else nccl_like.NAME
    join(backend, arrival_timeout=60)
    mesh, caught = meshkit.build_mesh(dp=2, tp=2), []
    try:
        with mesh.guard(timeout=LIMIT):
            if mesh.rank == 3:
                getattr(strike, fault, strike.note)()
                time.sleep(2 * LIMIT + ANSWER)
            total(mesh, "dp"), total(mesh, "tp"), total(mesh)
    except meshkit.CollectiveError as error:
        caught.append(error)
    began = time.monotonic()
    if fault != "shutdown first":
        mesh.close()
    meshkit.shutdown()
    seconds = time.monotonic() - began
    if fault not in ("kill", "stop"):  # all ranks live
        join(backend)
        again = meshkit.build_mesh(dp=2, tp=2)
        caught.append(total(again))  # type: ignore[arg-type]
        again.close()
    return seconds, len(caught), caught[1:]


AFTER_REPORT = ("kill", "stop", "late", "shutdown first", "on gloo")


@pytest.mark.parametrize("fault", AFTER_REPORT)
def test_after_a_report_nobody_waits_for_a_rank(fault: str, played: Played) -> None:
    assert played.fired == 3
    ranks, sums = (3, []) if fault in ("kill", "stop") else (4, [6.0])
    assert sorted(played.outcomes) == [*range(ranks)], played
    for outcome in played.outcomes.values():
        seconds, errors, rest = eval(outcome.text)
        assert seconds < 2 + BUSY, played
        assert (errors, rest) == (1 + len(sums), sums), played


def raise_in_block(strike: Strike, who: str) -> Any:
    """Raise in the block of a mesh on all ranks or on one; then use the default group."""
    join("gloo" if who == "all on gloo" else nccl_like.NAME, arrival_timeout=60)
    began, error, mesh = time.monotonic(), "", meshkit.build_mesh(dp=2, tp=2)
    world = meshkit.build_mesh(dp=4)
    try:
        with mesh:
            total(mesh, "dp")
            if who.startswith("all") or mesh.rank == 1:
                time.sleep(0.2 * mesh.rank)
                strike.note()
                raise ValueError("of the user")
            if who == "missing":
                time.sleep(TIMES.failure_stays + 1)
                total(mesh, "tp")
            if who == "closed by others" and mesh.rank:  # rank 0 waits before rank 1 gives up
                time.sleep(TIMES.failure_stays + mesh.rank)
    except (ValueError, RuntimeError) as raised:
        error = type(raised).__name__
    seconds = time.monotonic() - began
    if who not in ("missing", "closed by others"):
        return error, total(world), dist.get_world_size(), nccl_like.ABORTED
    return error, seconds, len(nccl_like.LIVE)


WHO_RAISES = ("all", "one", "all on gloo")


@pytest.mark.parametrize("who", WHO_RAISES)
def test_an_error_in_the_block_leaves_the_default_group(who: str, played: Played) -> None:
    for rank, outcome in played.outcomes.items():
        error = "" if who == "one" and rank != 1 else "ValueError"
        assert outcome.text == str((error, 6.0, 4, [])), played


def test_an_error_in_the_block_of_one_rank_aborts_after_some_seconds(played: Played) -> None:
    error, seconds, left = eval(played.outcomes[1].text)
    assert (error, left) == ("ValueError", 0)
    assert seconds < TIMES.failure_stays + 2 + BUSY


def test_ranks_that_close_a_mesh_wait_for_no_rank_that_has_given_up(played: Played) -> None:
    for rank, outcome in played.outcomes.items():
        error, seconds, left = eval(outcome.text)
        assert (error, left) == ("ValueError" if rank == 1 else "", 0), played
        assert seconds < TIMES.failure_stays + 3 + 2 + BUSY, played


def train(strike: Strike, fault: str) -> Any:
    """Train four steps; after two of them rank 3 is late or lost, and the others go on."""
    join()
    state: dict[str, Any] = {"weight": torch.zeros(2), "steps": 0}
    mesh, errors, restored = meshkit.build_mesh(dp=2, tp=2), [], None
    while state["steps"] < 4 and not mesh.recovery.is_over:
        try:
            if not mesh.inside:
                mesh.recovery.restore(state)
                mesh = mesh.recover(step=state["steps"])
                continue
            with mesh.guard(timeout=LIMIT):
                if restored is not mesh:
                    mesh.recovery.restore(state)
                    restored = mesh
                if strike.rank == 3 and not strike.start and state["steps"] == 2 and not errors:
                    strike.kill() if fault == "kill" else strike.note()
                    time.sleep(LIMIT + ANSWER)
                if strike.start == 0 and fault == "kill" and mesh.size("dp") == 1:
                    time.sleep(2)  # until rank 3 has come back
                gradient = torch.ones(2) * 2 / mesh.size("dp")
                dist.all_reduce(gradient, group=mesh.group("dp"))
                dist.all_reduce(torch.ones(1), group=mesh.group("tp"))
                mesh.commit()
                state["weight"] += gradient
                state["steps"] += 1
            if state["steps"] < 4:
                mesh = mesh.admit(step=state["steps"])
        except meshkit.CollectiveError as error:
            errors.append(str(error))
            mesh = mesh.recover(step=state["steps"])
    mesh.close()
    return state["weight"].tolist(), mesh.layout.sizes, errors


def test_garbage_of_an_abort_never_reaches_the_weights(played: Played) -> None:
    assert played.fired == 3
    outcomes = {rank: eval(outcome.text) for rank, outcome in played.outcomes.items()}
    assert [outcome[:2] for outcome in outcomes.values()] == [([8.0, 8.0], {"dp": 2, "tp": 2})] * 4
    assert all(len(outcome[2]) == 1 for outcome in outcomes.values())
    assert "rank 3 (dp=1 tp=1)" in outcomes[0][2][0]


def test_a_killed_rank_is_left_out_and_admitted_again(played: Played) -> None:
    assert played.fired == 3
    outcomes = {rank: eval(outcome.text) for rank, outcome in played.outcomes.items()}
    assert [outcome[:2] for outcome in outcomes.values()] == [([8.0, 8.0], {"dp": 2, "tp": 2})] * 4
    assert [len(outcomes[rank][2]) for rank in range(4)] == [1, 1, 1, 0]


# ------------------------------------------------------------ two devices in a group


def use_two_devices(strike: Strike, fault: str) -> Any:
    """Hang on one of two devices, each with its own timeout."""
    limit = timedelta(minutes=10)  # a torch without nccl has none
    pytest.MonkeyPatch().setattr(torch_aborts, "default_pg_nccl_timeout", limit)
    join(f"cpu:gloo,cuda:{nccl_like.NAME}", timeout=None)
    mesh = meshkit.build_mesh(dp=2)
    group: Any = mesh.group("dp")

    def seconds() -> list[float]:
        limits = group.host.options._timeout, group.timeout
        return [limit.total_seconds() for limit in limits]

    limits = [seconds()]
    began = time.monotonic()
    try:
        with mesh.guard(timeout=LIMIT):
            limits.append(seconds())
            if mesh.rank == 1:
                strike.note()
                time.sleep(LIMIT + ANSWER)
            tensor = torch.ones(2)
            if fault == "device":
                nccl_like.on_device(tensor)
            dist.all_reduce(tensor, group=group)
            tensor.cpu() if fault == "device" else tensor.tolist()
            mesh.commit()
    except meshkit.CollectiveError as error:
        return [*limits, seconds()], error.behind, round(time.monotonic() - began)
    return "through"


@pytest.mark.parametrize("fault", ["host", "device"])
def test_each_device_keeps_its_timeout_and_its_hang_is_reported(fault: str, played: Played) -> None:
    assert played.fired == 1
    limits, behind, took = eval(played.outcomes[0].text)
    assert limits == [[1800.0, 600.0], [LIMIT, 600.0], [1800.0, 600.0]]
    assert behind == (1,)
    assert took < LIMIT + ANSWER + BUSY


# ------------------------------------------------------------ creation


def build_on_host(strike: Strike) -> Any:
    """Build a mesh of gloo groups over a part of a job that is bound to a device."""
    nccl_like.Group.bound_device_id = torch.device("cuda:0")  # type: ignore[assignment]
    join()
    with meshkit.build_mesh(dp=2, backend="gloo", ranks=range(1, 3)) as mesh:
        sums = total(mesh) if mesh.inside else None
    with meshkit.build_mesh(dp=3) as whole:  # each rank takes part in the same splits
        return sums, total(whole)


def test_a_gloo_mesh_over_a_part_of_a_bound_job_is_built(played: Played) -> None:
    assert [played.outcomes[rank].text for rank in range(3)] == [
        "(None, 3.0)",
        "(3.0, 3.0)",
        "(3.0, 3.0)",
    ]


def init_custom_process_group(rank: int, size: int, folder: str, name: str) -> dist.ProcessGroup:
    """Create a group of some ranks by torch's private function, as OpenRLHF, verl and slime do."""
    c10d: Any = dist.distributed_c10d
    store = dist.PrefixStore(name, dist.FileStore(f"{folder}/{name}", size))
    args: Any = (size, rank, [], nccl_like.NAME, store)
    group, _ = c10d._new_process_group_helper(*args, group_name=name, timeout=timedelta(seconds=60))
    c10d._world.pg_group_ranks[group] = {number: number for number in range(size)}
    made: dist.ProcessGroup = group
    return made


def send_weights(strike: Strike) -> Any:
    """Create groups of ranks 0 and 1 alone beside a bound default group, and a mesh of all."""
    nccl_like.Group.bound_device_id = torch.device("cuda:0")  # type: ignore[assignment]
    join()
    world: Any = dist.group.WORLD
    sums, splits = [], []
    for number in range(2):
        if strike.rank < 2:
            with meshkit.unbound():
                with meshkit.unbound():  # a library that also does it
                    pass
                name = f"weights{number}"
                group = init_custom_process_group(strike.rank, 2, strike.folder, name)
            tensor = torch.full((2,), float(strike.rank + 1))
            dist.all_reduce(tensor, group=group)
            sums.append(tensor.tolist())
        splits.append(len(nccl_like._splits))
        with pytest.raises(ValueError, match="in the block"), meshkit.unbound():
            raise ValueError("in the block")
        bound = str(world.bound_device_id)
        mesh = meshkit.build_mesh(dp=3, share=False)  # which splits
        total(mesh)
        mesh.close()
    return sums, splits[0], bound, len(nccl_like._splits) > 0


def test_other_libraries_create_groups_of_some_ranks_beside_a_bound_one(played: Played) -> None:
    for rank in range(3):
        sums = [[3.0, 3.0]] * 2 if rank < 2 else []
        assert played.outcomes[rank].text == str((sums, 0, "cuda:0", True)), played


def build_unbound(strike: Strike) -> Any:
    """Build a mesh in ``unbound`` on rank 0 only, and then on all ranks."""
    nccl_like.Group.bound_device_id = torch.device("cuda:0")  # type: ignore[assignment]
    join()
    hidden = meshkit.unbound() if strike.rank == 0 else nullcontext()
    refused = pytest.raises(meshkit.DisagreementError, match=r"hidden by meshkit.unbound\(\)")
    with hidden, refused:
        meshkit.build_mesh(dp=2)
    with meshkit.unbound():
        mesh = meshkit.build_mesh(dp=2)
    return total(mesh), len(nccl_like._splits)


def test_a_mesh_is_built_unbound_on_all_ranks_or_on_none(played: Played) -> None:
    assert [played.outcomes[rank].text for rank in range(2)] == ["(1.0, 0)"] * 2, played


def use_axes_of_one(strike: Strike) -> Any:
    """Use a mesh with an axis of one rank in a bound job, and then its group."""
    nccl_like.Group.bound_device_id = torch.device("cuda:0")  # type: ignore[assignment]
    join()
    mesh = meshkit.build_mesh(dp=2, tp=1)
    model = torch.nn.Linear(2, 1)
    torch.nn.init.ones_(model.weight), torch.nn.init.zeros_(model.bias)
    model(torch.ones(2)).backward()
    mesh.clip_grad_norm(model, 1.0)
    moved = mesh.redistribute(torch.ones(2), "a/dp/tp -> a").tolist()
    mesh.barrier()
    mesh.verify(timeout=20)
    mesh.check_parameters(model)
    mesh.commit()
    before = [*nccl_like.CONNECTED]
    tensor = torch.full((2,), 5.0)
    dist.all_reduce(tensor, group=mesh.group("tp"))
    gathered = torch.empty(2)
    dist.all_gather_into_tensor(gathered, tensor, group=mesh.group("tp"))
    after = nccl_like.CONNECTED[len(before) :]
    mesh.close()
    return moved, 1 in before, after, gathered.tolist()


def test_a_group_of_one_rank_has_no_communicator_before_its_first_collective(
    played: Played,
) -> None:
    for rank in range(2):
        expected = ([1.0] * 4, False, [1], [5.0, 5.0])
        assert played.outcomes[rank].text == str(expected), played


def send_many_messages(strike: Strike) -> Any:
    """Send a message to every rank, in batches of two, and 150 chunks of a state to each of two."""
    join()
    others = [peer for peer in range(4) if peer != strike.rank]
    received = {peer: torch.zeros(3) for peer in others}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "MAX_MESSAGES", 2)
        channel = Channel("test", lambda: timedelta(seconds=60))
        sent = {peer: torch.full((3,), 10.0 * strike.rank + peer) for peer in others}
        channel.wait(channel.start(sent, received))
    values = [received[peer][0].item() for peer in others]
    small = [*nccl_like.SIZES]
    nccl_like.SIZES.clear()
    chunks = [torch.full((2,), float(number)) for number in range(150)]
    parts = [torch.zeros(2) for _ in chunks]
    targets, source = ([2, 3], None) if strike.rank == 1 else ([], 1 if strike.rank > 1 else None)
    sends = [(chunk, target) for target in targets for chunk in chunks]
    restore._communicate(sends, [(part, source) for part in parts], timedelta(seconds=60))
    state = sum(part.sum().item() for part in parts)
    return values, small, state, max(nccl_like.SIZES, default=0) <= 128, sum(nccl_like.SIZES)


def test_an_exchange_has_at_most_128_messages_in_a_batch(played: Played) -> None:
    for rank in range(4):
        values = [10.0 * peer + rank for peer in range(4) if peer != rank]
        state = 2.0 * sum(range(150)) * (rank > 1)
        number = {0: 0, 1: 300, 2: 150, 3: 150}[rank]
        assert eval(played.outcomes[rank].text) == (values, [2] * 3, state, True, number), played


def stop_in_creation(strike: Strike) -> Any:
    """Stop rank 1 while it creates a group, which NCCL itself waits for without an end."""
    join()
    if strike.rank == 1:
        pytest.MonkeyPatch().setattr(dist, "ProcessGroupGloo", lambda *args, **more: strike.stop())
    began = time.monotonic()
    try:
        meshkit.build_mesh(dp=1, tp=2, arrival_timeout=2, timeout=50)
    except meshkit.RankTimeoutError as error:
        return error.missing_ranks, time.monotonic() - began
    return "through"


def test_creation_that_does_not_end_is_bounded_and_names_the_rank(played: Played) -> None:
    assert played.fired == 1
    missing, took = eval(played.outcomes[0].text)
    assert missing == (1,)
    assert took < 10 + 3 + BUSY  # C of the promises, and the time to report


# ------------------------------------------------------------ commit and recover


def forget_to_commit(strike: Strike) -> Any:
    """Recover from a step that this rank has not committed."""
    join()
    mesh = meshkit.build_mesh(dp=2)
    total(mesh)
    mesh.commit()
    began = time.monotonic()
    try:
        raise dist.DistBackendError("nccl: a failure, as played")
    except dist.DistBackendError:
        try:
            mesh.recover(step=1 + strike.rank)
        except meshkit.SpecError as error:
            return str(error), time.monotonic() - began
    return "through"


def test_recover_refuses_a_step_that_was_not_committed(played: Played) -> None:
    for rank in range(2):
        text, took = eval(played.outcomes[rank].text)
        line = "step is 2 on rank 1, which has committed 1."
        assert f"mesh.recover(step={1 + rank}): {line}" in text
        assert took < BUSY  # rank 0 does not wait for rank 1


def begin_early(strike: Strike) -> Any:
    """Begin a collective of the next step, to which the peer comes after it has committed this."""
    join()
    mesh, ahead = meshkit.build_mesh(dp=2), torch.ones(1)
    own = torch.ones(1)
    with mesh.guard(timeout=60):
        dist.all_reduce(own, group=mesh.group("dp"))
        if mesh.rank == 0:
            dist.all_reduce(ahead, async_op=True)
        mesh.commit()
        is_done = not any(work.is_waited for work in nccl_like.PENDING)
        if mesh.rank == 1:
            dist.all_reduce(ahead, async_op=True)
    return is_done, own.item(), ahead.item()


def test_commit_waits_for_the_collectives_of_the_step_alone(played: Played) -> None:
    assert [played.outcomes[rank].text for rank in range(2)] == ["(True, 2.0, 2.0)"] * 2


def job(fn: Callable[..., Any], ranks: int, *args: Any, **options: Any) -> Callable[[], Played]:
    return partial(play, fn, ranks, args, **{"timeout": 90, **options})


AT_ONCE = 3
JOBS: dict[str, Callable[[], Played]] = {
    "test_a_killed_rank_is_left_out_and_admitted_again": job(train, 4, "kill", restarts=1),
    "test_garbage_of_an_abort_never_reaches_the_weights": job(train, 4, "late"),
    "test_creation_that_does_not_end_is_bounded_and_names_the_rank": job(stop_in_creation, 2),
    **{
        f"test_the_stand_in_behaves_as_torch_documents_it[{kind}-{handling}-{first}]": job(
            try_semantics, 2, kind, handling, timeout=12 if first == "running" else 60
        )
        for kind, handling, first in SEMANTICS
    },
    **{
        f"test_a_guard_names_the_rank_before_the_watchdog_ends_the_process[{fault}]": job(
            fail_in_guard, 4, fault
        )
        for fault in ("stop", "kill")
    },
    **{
        f"test_each_device_keeps_its_timeout_and_its_hang_is_reported[{fault}]": job(
            use_two_devices, 2, fault
        )
        for fault in ("host", "device")
    },
    **{
        f"test_a_process_joins_again_and_splits_its_groups[{ending}]": job(join_again, 4, ending)
        for ending in ("order", "failure")
    },
    **{
        f"test_after_a_report_nobody_waits_for_a_rank[{fault}]": job(close_after_report, 4, fault)
        for fault in AFTER_REPORT
    },
    **{
        f"test_an_error_in_the_block_leaves_the_default_group[{who}]": job(raise_in_block, 4, who)
        for who in WHO_RAISES
    },
    "test_an_error_in_the_block_of_one_rank_aborts_after_some_seconds": job(
        raise_in_block, 4, "missing", timeout=30
    ),
    "test_ranks_that_close_a_mesh_wait_for_no_rank_that_has_given_up": job(
        raise_in_block, 4, "closed by others"
    ),
    **{
        f"test_the_watchdog_ends_no_process_whose_default_group_is_of_gloo[{kind}]": job(
            lose_a_peer_beside_gloo, 2, kind
        )
        for kind in BESIDE_GLOO
    },
    "test_a_healthy_mesh_computes_commits_and_closes": job(use_groups, 4),
    "test_a_gloo_mesh_over_a_part_of_a_bound_job_is_built": job(build_on_host, 3),
    "test_other_libraries_create_groups_of_some_ranks_beside_a_bound_one": job(send_weights, 3),
    "test_a_mesh_is_built_unbound_on_all_ranks_or_on_none": job(build_unbound, 2),
    "test_a_group_of_one_rank_has_no_communicator_before_its_first_collective": job(
        use_axes_of_one, 2
    ),
    "test_an_exchange_has_at_most_128_messages_in_a_batch": job(send_many_messages, 4),
    "test_a_rank_that_waits_outside_torch_is_not_taken_for_the_cause": job(
        sleep_before_two_axes, 4
    ),
    "test_commit_waits_for_the_collectives_of_the_step_alone": job(begin_early, 2),
    "test_recover_refuses_a_step_that_was_not_committed": job(forget_to_commit, 2),
}
