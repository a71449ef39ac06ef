"""One guard, or one decorated function, in several threads, tasks and generators."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.groups.status import is_tracked
from meshkit.guard.reentrant import ReentrantGuard
from meshkit.launch.torch_aborts import timeout_of
from tests.pool import Pool, start_pool

PAUSES = (0.0, 0.3, 0.15)  # seconds: of three blocks, so that they overlap and end in any order


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with start_pool(2) as ranks:
        yield ranks


@contextlib.contextmanager
def open_mesh() -> Iterator[tuple[meshkit.Mesh, list[dist.ProcessGroup]]]:
    """Open a mesh and a group for each of three threads; check that no guard leaves a trace."""
    with meshkit.build_mesh(dp=2, timeout={"dp": 50}) as mesh:
        groups = [dist.new_group() for _ in PAUSES]
        yield mesh, groups
        timeout = timeout_of(mesh.group("dp"))
        assert timeout is not None
        assert timeout.total_seconds() == 50
        assert not is_tracked()
        assert not mesh._guard_state.open
        mesh.barrier()
        for group in groups:
            dist.destroy_process_group(group)


def add(group: dist.ProcessGroup) -> float:
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    return float(total)


def run_in_threads(kind: str, limit: float | None) -> Any:
    """Add in three threads inside one guard; the order of the blocks differs between the ranks."""
    with open_mesh() as (mesh, groups):
        guard = mesh.guard(timeout=limit)

        def block(number: int) -> float:
            with guard:
                return work(number)

        def work(number: int) -> float:
            time.sleep(PAUSES[(number + mesh.rank) % 3])
            total = add(groups[number])
            time.sleep(PAUSES[(number + 2 * mesh.rank) % 3])
            assert is_tracked()  # although another thread has left the guard meanwhile
            return total

        call = block if kind == "block" else guard(work)
        with ThreadPoolExecutor(3) as threads:
            sums = [*threads.map(call, range(3))]
        sums.append(call(0))
        return sums


@pytest.mark.parametrize("limit", [None, 20.0])
@pytest.mark.parametrize("kind", ["block", "function"])
def test_one_guard_in_several_threads(kind: str, limit: float | None, pool: Pool) -> None:
    assert pool.run(run_in_threads, kind, limit) == [[2.0] * 4] * 2


def run_in_tasks(kind: str) -> Any:
    """Enter one guard in three tasks that sleep inside it, and in their own tasks."""
    with open_mesh() as (mesh, groups):
        guard = mesh.guard(timeout=20)

        async def block(number: int, depth: int = 2) -> float:
            with guard:
                return await work(number, depth)

        async def work(number: int, depth: int = 2) -> float:
            await asyncio.sleep(PAUSES[(number + mesh.rank) % 3])
            if depth:
                await asyncio.gather(call(number, depth - 1), asyncio.sleep(0))
            return 1.0 if depth else float(is_tracked())

        call: Any = block if kind == "block" else guard(work)

        async def main() -> list[float]:
            sums = await asyncio.gather(*map(call, range(3)))
            assert not is_tracked()
            return [*sums, await call(0), await asyncio.to_thread(block_of_thread)]

        def block_of_thread() -> float:
            with guard:
                return add(groups[0])

        return asyncio.run(main())


@pytest.mark.parametrize("kind", ["block", "function"])
def test_one_guard_in_several_tasks(kind: str, pool: Pool) -> None:
    assert pool.run(run_in_tasks, kind) == [[1.0] * 4 + [2.0]] * 2


def decorate_each_kind() -> Any:
    """Decorate a function of each kind; return whether each body ran inside the guard."""
    with open_mesh() as (mesh, _):
        guard = mesh.guard(timeout=20)

        @guard
        def plain() -> bool:
            return is_tracked()

        @guard
        async def coroutine() -> bool:
            await asyncio.sleep(0)
            return is_tracked()

        @guard
        def generator() -> Iterator[Any]:
            sent = yield is_tracked()
            try:
                yield sent
            except KeyError:
                yield is_tracked()
            return "end"  # type: ignore[return-value]

        @guard
        async def async_generator() -> AsyncIterator[Any]:
            sent = yield is_tracked()
            try:
                yield sent
            except KeyError:
                yield is_tracked()

        async def drive() -> list[Any]:
            items: Any = async_generator()
            seen = [await items.asend(None), await items.asend("a"), await items.athrow(KeyError())]
            assert await anext(items, "end") == "end"
            assert not is_tracked()
            closed: Any = async_generator()
            await closed.asend(None)
            await closed.aclose()
            return seen

        items: Any = generator()
        seen = [next(items), items.send("a"), items.throw(KeyError()), *map(str, items)]
        return (
            [plain(), asyncio.run(coroutine()), seen, asyncio.run(drive())],
            [inspect.iscoroutinefunction(coroutine), inspect.isgeneratorfunction(generator)],
            [generator.__name__, inspect.isasyncgenfunction(async_generator)],
        )


def test_a_guard_decorates_functions_of_every_kind(pool: Pool) -> None:
    seen = [True, "a", True]
    expected = ([True, True, seen, seen], [True, True], ["generator", True])
    assert pool.run(decorate_each_kind) == [expected] * 2


def decorate_what_is_no_function() -> Any:
    """Decorate objects that are called, and methods; return whether each body ran inside."""
    with open_mesh() as (mesh, _):
        guard = mesh.guard(timeout=20)

        class Coroutine:
            async def __call__(self) -> bool:
                await asyncio.sleep(0)
                return is_tracked()

        class Generator:
            def __call__(self) -> Iterator[bool]:
                yield is_tracked()

        class Methods:
            @guard
            @staticmethod
            def static(number: int) -> tuple[int, bool]:
                return number, is_tracked()

        def begin(function: Any) -> Any:
            return function()

        bodies = [
            asyncio.run(guard(Coroutine())()),
            asyncio.run(guard(functools.partial(Coroutine().__call__))()),
            asyncio.run(guard(begin)(Coroutine())),
            *guard(Generator())(),
            guard(functools.partial(is_tracked))(),
        ]
        methods = [Methods.static(1), Methods().static(2)]
        return bodies, methods, guard(len)([1])


def test_a_guard_decorates_objects_and_methods(pool: Pool) -> None:
    methods = [(1, True), (2, True)]
    assert pool.run(decorate_what_is_no_function) == [([True] * 5, methods, 1)] * 2


def end_generators_in_any_order(close: Callable[[Any], object]) -> Any:
    """End two generators inside a guard in the order in which they began, and in another thread."""
    with open_mesh() as (mesh, _):
        guard = mesh.guard(timeout=20)

        def items() -> Iterator[int]:
            with guard:
                yield 1
                yield 2

        for steps in ([0, 1], [1, 0]):
            generators = [items(), items()]
            total = sum(next(generator) for generator in generators)
            for number in steps:
                close(generators[number])
        return total


def close_in_thread(generator: Any) -> None:
    thread = threading.Thread(target=generator.close)
    thread.start()
    thread.join()


@pytest.mark.parametrize("close", [list, close_in_thread])
def test_generators_end_in_any_order_and_thread(close: Any, pool: Pool) -> None:
    assert pool.run(end_generators_in_any_order, close) == [2, 2]


def fail_in_one_thread() -> Any:
    """Raise in one thread while another one is inside; enter again, and skip a collective."""
    with open_mesh() as (mesh, groups):
        guard, reports, entered = mesh.guard(timeout=20), [], threading.Event()

        def stay() -> float:
            with guard:
                entered.set()
                time.sleep(0.3)
                return add(groups[0])

        with ThreadPoolExecutor(1) as thread:
            future = thread.submit(stay)
            entered.wait()
            for _ in range(2):
                with contextlib.suppress(KeyError), guard:
                    raise KeyError
            total = future.result()
        mesh.barrier()
        try:
            with guard:
                if mesh.rank == 0:
                    dist.all_reduce(torch.ones(1), group=mesh.group("dp"), async_op=True)
        except meshkit.CollectiveError as error:
            reports.append(error.behind)
        if mesh.rank == 1:
            dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
        return total, reports


def test_a_guard_is_entered_again_after_an_error_in_one_thread(pool: Pool) -> None:
    results = pool.run(fail_in_one_thread)
    assert [total for total, _ in results] == [2.0, 2.0]
    # the last rank to leave compares the counts again, once one thread alone is in the guards
    assert [report for _, reports in results for report in reports] == [(1,)]


def misuse_a_guard() -> list[Any]:
    with open_mesh() as (mesh, _):
        texts = []
        wrong: Any = mesh.guard
        for call in (
            lambda: wrong(is_tracked),
            lambda: mesh.guard(timeout=9).__exit__(*[None] * 3),
        ):
            with pytest.raises(meshkit.MeshkitError) as caught:
                call()
            texts.append(caught.value.fix_text)
        return texts


def test_a_guard_without_brackets_or_that_is_not_entered(pool: Pool) -> None:
    for brackets, entered in pool.run(misuse_a_guard):
        assert brackets.startswith("@mesh.guard(timeout=60)")
        assert entered.startswith("with mesh.guard(timeout=60)")


def enter_a_kept_guard() -> list[Any]:
    """Keep a guard while the user destroys a group of the mesh, and until the mesh is closed."""
    groups = {axes: dist.new_group() for axes in (("dp",), ())}
    with meshkit.Mesh.from_groups(meshkit.Layout(dp=2), {"dp": groups["dp",]}) as mesh:
        guard = mesh.guard(timeout=20)
        dist.destroy_process_group(groups["dp",])
        with guard:
            texts: list[Any] = [add(groups[()])]
    for call in (guard.__enter__, guard(lambda: None)):
        with pytest.raises(meshkit.MeshkitError) as caught:
            call()
        texts.append(str(caught.value).splitlines()[0])
    dist.barrier()
    dist.destroy_process_group(groups[()])
    return texts


def test_a_kept_guard_looks_at_the_mesh_as_it_is_entered(pool: Pool) -> None:
    for total, *texts in pool.run(enter_a_kept_guard):
        assert total == 2
        assert texts == ["mesh.guard(): the mesh is closed."] * 2


@pytest.mark.parametrize(
    ("thing", "place"),
    [
        (property(len), "below @property"),
        (classmethod(len), "below @classmethod"),
        (Exception, "on its methods"),
    ],
)
def test_what_would_become_a_function_is_refused(thing: Any, place: str) -> None:
    guard = ReentrantGuard(contextlib.nullcontext)
    with pytest.raises(meshkit.SpecError, match="decorates a function") as caught:
        guard(thing)
    assert place in caught.value.fix
    wrapped: Any = guard(staticmethod(len))  # type: ignore[type-var]
    assert wrapped("ab") == 2
