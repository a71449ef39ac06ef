"""The line and the operation of a rank, read from the frames of its thread."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import meshkit
from meshkit.groups.frame_calls import frames_of_thread
from meshkit.groups.status import (
    CollectiveTracker,
    CurrentCollective,
    compares_calls,
    find_collective_error,
    frames_of_error,
    is_collective_error,
    rank_status,
    tracking,
    wait,
    with_calls,
)
from meshkit.launch.disagreement import RankStatus, TracedCall
from meshkit.launch.torch_aborts import collective_count
from meshkit.testing.faults import Strike, play


def test_calls_are_compared_in_a_guard_with_a_timeout_and_in_each_guard_inside_it() -> None:
    assert not compares_calls()
    with tracking():
        assert not compares_calls()
        with tracking(timedelta(seconds=1)), tracking():
            assert compares_calls()
        assert not compares_calls()
    assert not compares_calls()


def test_the_line_of_user_code() -> None:
    try:
        meshkit.Layout(dp=0)
    except meshkit.SpecError as error:
        status = rank_status(3, {}, frames_of_error(error, error), error="SpecError: x")
    assert (status.rank, status.operation, status.error) == (3, "", "SpecError: x")
    assert status.line.startswith("test_status.py:")
    assert status.line.endswith("(test_the_line_of_user_code)")
    assert str(status) == "left with SpecError: x"


def test_generated_code_has_no_line_unless_a_program_is_typed() -> None:
    generated: dict[str, Any] = {}
    exec("def outer(call): call()\ndef fail(): raise ValueError", generated)

    def fail_in_a_file() -> None:
        generated["fail"]()

    lines = {}
    for name, call in {"file": fail_in_a_file, "typed": generated["fail"]}.items():
        try:
            generated["outer"](call)
        except ValueError as error:
            frames = error.__traceback__.tb_next if error.__traceback__ else None
            lines[name] = rank_status(0, {}, traceback.walk_tb(frames)).line
    assert lines["file"].endswith("(fail_in_a_file)")
    assert lines["typed"] == "<string>:2 (fail)"


def test_the_line_of_another_thread_and_of_an_ended_one() -> None:
    started, end = threading.Event(), threading.Event()

    def wait_for_end() -> None:
        started.set()
        end.wait(30)  # in the standard library, which is not user code

    thread = threading.Thread(target=wait_for_end)
    thread.start()
    started.wait(30)
    assert thread.ident is not None
    line = rank_status(0, {}, frames_of_thread(thread.ident)).line
    end.set()
    thread.join()
    assert line.startswith("test_status.py:")
    assert line.endswith("(wait_for_end)")
    ended = rank_status(0, {}, frames_of_thread(thread.ident))
    assert str(ended) == "in no collective, no line is known"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (dist.DistBackendError("x"), True),
        (dist.DistBackendError("NCCL error in: a.cpp"), True),
        (RuntimeError("[a/gloo/transport/tcp/pair.cc:547] Connection closed by peer"), False),
        (RuntimeError("please set NCCL_DEBUG"), False),
        (RuntimeError("Wait timeout"), False),
        (ValueError("gloo"), False),
        (meshkit.LaunchError("gloo timed out"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_the_type_of_an_error_decides_and_not_its_text(
    error: BaseException, expected: bool
) -> None:
    def wait() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        wait()
    assert is_collective_error(caught.value) is expected
    error.__traceback__ = None
    assert is_collective_error(error) is expected


def test_an_error_of_a_store_of_the_user_is_none_of_a_collective() -> None:
    """The store of a library, or of a check of the user, may time out inside a guard."""
    arguments = ["key"], timedelta(milliseconds=10)
    for module, expected in (("train", False), ("torch.distributed.distributed_c10d", True)):
        namespace = {"__name__": module}
        exec("def wait(store, *arguments): store.wait(*arguments)", namespace)
        with pytest.raises(dist.DistError) as caught:
            namespace["wait"](dist.HashStore(), *arguments)  # type: ignore[operator]
        assert is_collective_error(caught.value) is expected
    assert is_collective_error(dist.DistNetworkError("x"))  # nobody has raised it


def test_an_error_may_be_raised_from_the_failure_of_a_collective() -> None:
    failure, circle = dist.DistNetworkError("x"), ValueError("y")
    for wrapper, found in (
        (RuntimeError("Failed to run stage backward"), failure),
        (KeyError("of the user"), failure),
        (meshkit.SpecError("says itself what has failed"), None),
    ):
        wrapper.__cause__ = failure
        assert find_collective_error(wrapper) is found
    circle.__cause__ = circle
    assert find_collective_error(circle) is None


class Group(Exception):
    """An ExceptionGroup, also for the Python that has none."""

    def __init__(self, *exceptions: BaseException) -> None:
        self.exceptions = exceptions


def test_a_group_of_exceptions_may_hold_the_failure_of_a_collective() -> None:
    """A TaskGroup of asyncio raises a group."""
    failure = dist.DistBackendError("x")
    found = find_collective_error(Group(KeyError("z"), Group(ValueError("y"), failure)))
    assert found is failure
    assert find_collective_error(Group(RuntimeError("NCCL timeout"))) is None
    assert find_collective_error(Group(meshkit.SpecError("says itself"))) is None


class Attempts(Exception):
    """An error of a user with an attribute that is no group of errors."""

    def __init__(self, exceptions: Any) -> None:
        self._exceptions = exceptions

    @property
    def exceptions(self) -> Any:
        if self._exceptions == "raise":
            raise LookupError
        return self._exceptions


@pytest.mark.parametrize("exceptions", [None, len, "raise", "abc", 3, [1]])
def test_an_attribute_of_a_user_is_no_group_of_exceptions(exceptions: Any) -> None:
    error = Attempts(exceptions)
    assert find_collective_error(error) is None
    error.__cause__ = dist.DistBackendError("x")
    assert find_collective_error(error) is error.__cause__


class SumGradients(torch.autograd.Function):
    """The identity, whose gradient is summed over a group."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def raise_text(text: str) -> None:
    raise RuntimeError(text)


def wait_for_all(works: list[Any]) -> None:
    for work in works:
        work.wait()


def multiply() -> None:
    torch.nn.functional.linear(torch.ones(2, 3), torch.ones(2, 2))


# How a collective fails, over a group of two ranks and with a layer of DDP over it.
FAILURES: dict[str, Callable[[dist.ProcessGroup, Any], object]] = {
    "call": lambda group, _: dist.all_reduce(torch.ones(1), group=group),
    "work": lambda group, _: start(group).wait(),
    "works": lambda group, _: wait_for_all([start(group), start(group)]),
    "listed": lambda group, _: [work.wait() for work in [start(group)]],
    "future": lambda group, _: start(group).get_future().wait(),
    "meshkit": lambda group, _: wait(start(group), group),
    "functional": lambda group, _: functional.all_reduce(torch.ones(1), "sum", group).tolist(),
    "message": lambda group, _: dist.recv(torch.ones(1), group=group, group_src=1),
    "objects": lambda group, _: dist.all_gather_object([None] * 2, 1, group=group),
    "backward": lambda group, _: (
        SumGradients.apply(torch.ones(1).requires_grad_(), group).sum().backward()
    ),
    "ddp": lambda _, ddp: ddp(torch.ones(2, 3)).sum().backward(),
}
# What else may raise meanwhile, though the connection to the other rank is lost.
OTHERS: dict[str, Callable[[dist.ProcessGroup, Any], object]] = {
    "raised": lambda group, _: raise_text("[gloo] Connection closed by peer"),
    "shapes": lambda group, _: multiply(),
    "operator": lambda group, _: torch.ones(2, 3) @ torch.ones(2, 3),
    "loader": lambda group, _: [*torch.utils.data.DataLoader([torch.ones(1), torch.ones(2)], 2)],  # type: ignore[arg-type]
}


# What raises where a collective could, so that the connections are looked at.
CALLERS: dict[str, Callable[[dist.ProcessGroup, Any], object]] = {
    "no gradient": lambda group, _: torch.ones(1).sum().backward(),
}


def start(group: dist.ProcessGroup) -> Any:
    return dist.all_reduce(torch.ones(1), group=group, async_op=True)


def fail_in_each_way(strike: Strike, healthy: bool) -> Any:
    """Return which errors of rank 0 are those of a collective, once rank 1 has ended."""
    meshkit.init()
    groups = {name: dist.new_group() for name in FAILURES}
    ddp = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(3, 3), process_group=groups["ddp"]
    )
    dist.barrier()
    if strike.rank == 1 and not healthy:
        strike.kill()
    kinds, counts = {}, [collective_count(group) for group in groups.values()]
    calls = {**OTHERS, **(CALLERS if healthy else FAILURES)}
    for name, call in {**calls, "last": OTHERS["shapes"]}.items():
        try:
            call(groups.get(name, dist.group.WORLD), ddp)  # type: ignore[arg-type]
        except RuntimeError as error:
            kinds[name] = is_collective_error(error)
    strike.note()
    dist.barrier() if healthy else None
    assert not healthy or counts == [collective_count(group) for group in groups.values()]
    return kinds


@pytest.mark.parametrize("healthy", [False, True])
def test_a_failed_collective_is_told_from_any_other_error_of_torch(healthy: bool) -> None:
    played = play(fail_in_each_way, 2, (healthy,), timeout=120)  # a busy machine takes 18 s
    kinds = eval(played.outcomes[0].text)
    others = dict.fromkeys([*OTHERS, "last"], False)
    assert kinds == others | dict.fromkeys(CALLERS if healthy else FAILURES, not healthy)


def frames_through(*modules: str) -> Any:
    """Return the frames of a thread in functions of these modules, the outermost first."""
    call: Callable[[], Any] = partial(frames_of_thread, threading.get_ident())
    for module in reversed(modules):
        is_torch = module.startswith("torch.")
        path = str(Path(torch.__file__).parents[1] / f"{module.replace('.', '/')}.py")
        code = compile(
            "def step(): return call()", path if is_torch else f"<frozen {module}>", "exec"
        )
        names = {"__name__": module, "call": call}
        exec(code, names)
        call = names["step"]  # type: ignore[assignment]
    return call()


@pytest.mark.parametrize(
    ("modules", "function"),
    [
        (["torch.nn.parallel.distributed"], "torch's step"),
        (["torch.nn.parallel.distributed", "importlib._bootstrap", "torch.optim.adam"], ""),
        (["torch.nn.parallel.distributed", "torch._dynamo.eval_frame", "torch.fx.graph"], ""),
        (["torch._tensor", "torch._inductor.compile_fx"], ""),
    ],
)
def test_an_import_or_a_compilation_inside_of_torch_is_no_wait(
    modules: list[str], function: str
) -> None:
    status = rank_status(0, {}, frames_through(*modules))
    assert (status.function, status.line.partition(":")[0]) == (function, "test_status.py")


def find_operations() -> Any:
    """Return the operation that rank_status reads from the frames inside each collective."""
    mesh = meshkit.build_mesh(dp=2)
    view = mesh.view(x=2, timeout=77)
    own = dist.new_group([0, 1], group_desc="a group of the user")
    groups = {" ".join(axes): group for axes, group in mesh._groups.groups.by_key.items()}
    seen: list[tuple[str, bool]] = []

    def look(*_: Any, **__: Any) -> Any:
        frames, current = frames_of_thread(threading.get_ident()), tracker.current
        status = rank_status(mesh.rank, groups, frames, current)
        seen.append((status.operation, status.is_other_mesh))
        raise ZeroDivisionError

    calls = {
        "dp": lambda: dist.all_reduce(torch.ones(1), group=mesh.group("dp")),
        "world": lambda: dist.broadcast(torch.ones(1), 0),
        "foreign": lambda: dist.all_gather([torch.ones(1)] * 2, torch.ones(1), group=own),
        "view": lambda: dist.all_reduce(torch.ones(1), group=view.group("x")),
        "barrier": lambda: mesh.barrier("dp"),
        "begun": lambda: wait(SimpleNamespace(wait=look), mesh.group("dp")),  # type: ignore[arg-type]
        "none": look,
    }
    operations = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist.distributed_c10d, "_rank_not_in_group", look)
        patch.setattr(dist, "barrier", look)
        for name, call in calls.items():
            seen.clear()
            with contextlib.suppress(ZeroDivisionError), tracking() as tracker:
                call()
            operations[name] = seen[0]  # torch calls it again when it logs the error
    return operations


def test_the_operation_and_the_axes() -> None:
    for operations in meshkit.spawn(find_operations, 2, timeout=60):
        description, is_other_mesh = operations.pop("view")
        assert description.startswith("all_reduce over meshkit ")
        assert is_other_mesh
        assert operations == {
            "dp": ("all_reduce over dp", False),
            "world": ("broadcast over dp", False),
            "foreign": ("all_gather over a group of the user", False),
            "barrier": ("barrier over dp", False),
            "begun": ("wait over dp", False),
            "none": ("", False),
        }


def test_only_the_error_that_left_a_collective_has_one() -> None:
    error, barrier = RuntimeError(), CurrentCollective("barrier", dist.ProcessGroup(0, 1))
    assert CollectiveTracker().of_error(error) is None
    tracker = CollectiveTracker(failed=(id(error), barrier))
    assert tracker.of_error(error) is barrier
    assert tracker.of_error(RuntimeError()) is None


def test_a_call_that_the_device_has_started_stays_started_while_its_thread_waits_in_it() -> None:
    status = replace(
        RankStatus(0, {"dp": 3}, "all_reduce", "dp", "a.py:3 (f)"),
        calls={"dp": (TracedCall(name="all_reduce", state="begun"),)},
    )
    for recorded, seen in (("started", "started"), ("begun", "begun"), ("completed", "begun")):
        traced = {"dp": (TracedCall(3, "all_reduce", state=recorded),)}
        (call,) = with_calls(status, traced, has_failed=False).calls["dp"]
        assert call == TracedCall(3, "all_reduce", line="a.py:3 (f)", state=seen)
