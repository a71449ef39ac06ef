"""Seeds and random streams: in one process, and on meshes of real ranks."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import meshkit
from meshkit import Layout, MeshkitError, SpecError, stream_seed
from meshkit.data import rng as rng_module
from meshkit.data.rng import RandomStreams
from meshkit.launch.job import require_job
from tests.faults import error_of

LAYOUT = Layout(dp=2, sp=2, tp=2)


@pytest.fixture
def rng() -> Iterator[RandomStreams]:
    """Yield the streams of rank 5 (dp=1 sp=0 tp=1) on the CPU; restore torch's state after."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield RandomStreams(LAYOUT, 5, "cpu", lambda: 3)


def generator(name: str, **coordinate: int) -> torch.Generator:
    """Return a generator that draws the same numbers as a stream."""
    return torch.Generator().manual_seed(stream_seed(3, name, **coordinate))


def numbers(count: int = 4) -> list[float]:
    return torch.rand(count).tolist()


VARY = ("dp", "tp")


# ---------------------------------------------------------------- a stream, and what is outside


def test_a_stream_draws_as_the_generator_of_its_seed_and_continues(rng: RandomStreams) -> None:
    expected = torch.rand(8, generator=generator("dropout", dp=1, tp=1)).tolist()
    with rng("dropout", vary=VARY):
        drawn_numbers = numbers(3)
    with rng("dropout", vary="tp dp"):
        drawn_numbers += numbers(5)
    assert drawn_numbers == expected


def test_a_stream_leaves_the_global_generator_unchanged(rng: RandomStreams) -> None:
    expected = [numbers(), torch.randn(3).tolist(), numbers()]
    torch.manual_seed(0)
    drawn_numbers = [numbers()]
    with rng("dropout"):
        torch.randn(5)  # an odd number, which leaves half a pair in the generator
    drawn_numbers.append(torch.randn(3).tolist())
    with pytest.raises(ZeroDivisionError), rng("dropout", vary=VARY):
        torch.rand(1 // 0)
    drawn_numbers.append(numbers())
    assert drawn_numbers == expected


def test_streams_nest_but_not_in_themselves(rng: RandomStreams) -> None:
    a, b = (torch.rand(4, generator=generator(name)).tolist() for name in "ab")
    with rng("a"):
        drawn_numbers = numbers(2)
        with rng("b"):
            assert numbers() == b
        inside = torch.get_rng_state()
        with pytest.raises(MeshkitError), rng("a"):
            pass
        assert torch.equal(inside, torch.get_rng_state())
        drawn_numbers += numbers(2)
    assert drawn_numbers == a
    with rng("a"):  # it can be entered again once it is left
        pass


def test_streams_left_in_another_order_raise(rng: RandomStreams) -> None:
    """Two Python generators that are advanced in turn leave their streams in this order."""
    before, first, second = torch.get_rng_state(), rng("a"), rng("b")
    first.__enter__()
    second.__enter__()
    numbers()
    with pytest.raises(MeshkitError):
        first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    torch.set_rng_state(before)
    with rng("a"):
        assert numbers() == torch.rand(4, generator=generator("a")).tolist()


def test_streams_differ_by_name_and_by_axes(rng: RandomStreams) -> None:
    drawn = []
    for name, vary in (("a", ()), ("a", "dp"), ("a", "tp"), ("a", "dp tp"), ("b", "dp")):
        with rng(name, vary=vary):
            drawn.append(tuple(numbers()))
    assert len({*drawn}) == 5
    assert [*rng.state_dict()] == ["a", "a dp=1", "a tp=1", "a dp=1 tp=1", "b dp=1"]


def test_a_stream_keeps_the_seed_that_it_began_with(rng: RandomStreams) -> None:
    with rng("x", vary="dp", seed=9):
        drawn_numbers = numbers(2)
    with rng("x", vary="dp"):  # goes on
        drawn_numbers += numbers(2)
    with rng("x", vary="dp", seed=9):
        drawn_numbers += numbers(2)
    own = torch.Generator().manual_seed(stream_seed(9, "x", dp=1))
    assert drawn_numbers == torch.rand(6, generator=own).tolist()
    with pytest.raises(SpecError):
        rng("x", vary="dp", seed=8)


@pytest.mark.parametrize("name", ["", "a b", " a", "a\n", 3, None])
def test_invalid_names_raise(rng: RandomStreams, name: Any) -> None:
    before = torch.get_rng_state()
    with pytest.raises(SpecError):
        rng(name)
    assert torch.equal(before, torch.get_rng_state())


# ---------------------------------------------------------------- states


def test_a_state_is_a_copy_that_torch_stores(rng: RandomStreams) -> None:
    with rng("x", vary="dp"):
        numbers()
    state, file = rng.state_dict(), io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert {key: {*kinds} for key, kinds in loaded.items()} == {"x dp=1": {"cpu", "sizes"}}
    assert loaded["x dp=1"]["cpu"].dtype == torch.uint8
    state["x dp=1"]["cpu"].zero_()  # as a checkpoint is read into it
    with rng("x", vary="dp"):
        drawn_numbers = numbers()
    rng.load_state_dict(loaded)
    loaded["x dp=1"]["cpu"].zero_()
    with rng("x", vary="dp"):
        assert numbers() == drawn_numbers
    assert drawn_numbers == torch.rand(8, generator=generator("x", dp=1)).tolist()[4:]


def test_a_state_saved_inside_streams_is_their_current_state(rng: RandomStreams) -> None:
    with rng("a"):
        numbers(1)
        with rng("b"):
            numbers(2)
            state = rng.state_dict()
    other = RandomStreams(LAYOUT, 5, "cpu", lambda: 99)
    other.load_state_dict(state)
    for name, count in (("a", 1), ("b", 2)):
        with other(name):
            expected = torch.rand(6, generator=generator(name)).tolist()
            assert numbers(6 - count) == expected[count:]


def test_a_stream_without_a_saved_state_begins_anew(rng: RandomStreams) -> None:
    for name in "ab":
        with rng(name):
            numbers()
    only = {"a": rng.state_dict()["a"]}
    rng.load_state_dict(only)
    assert [*rng.state_dict()] == ["a"]
    with rng("b", seed=4):  # and may begin with any seed
        drawn_numbers = numbers()
    expected = torch.Generator().manual_seed(stream_seed(4, "b"))
    assert drawn_numbers == torch.rand(4, generator=expected).tolist()


def test_each_rank_takes_its_own_of_the_states_of_all_ranks(rng: RandomStreams) -> None:
    merged: dict[str, Any] = {}
    for rank in range(8):
        streams = RandomStreams(LAYOUT, rank, "cpu", lambda: 3)
        for vary in ((), "dp", "dp tp"):
            with streams("x", vary=vary):
                numbers(rank)
        merged |= streams.state_dict()
    assert len(merged) == 1 + 2 + 4
    rng.load_state_dict({**merged, "x other=0": merged["x"]})  # of an axis that is not here
    assert [*rng.state_dict()] == ["x", "x dp=1", "x dp=1 tp=1"]
    outside = RandomStreams(LAYOUT, 99, "cpu", lambda: 3)
    outside.load_state_dict(merged)
    assert [*outside.state_dict()] == ["x"]


# ---------------------------------------------------------------- states of other ranks and meshes


def streams_of(layout: Layout, rank: int) -> RandomStreams:
    return RandomStreams(layout, rank, "cpu", lambda: 3)


def states_of(layout: Layout, ranks: Iterable[int], vary: str) -> dict[str, Any]:
    """Return the merged states of some ranks, each after one number."""
    merged: dict[str, Any] = {}
    for rank in ranks:
        streams = streams_of(layout, rank)
        with streams("x", vary=vary):
            numbers(1)
        merged |= streams.state_dict()
    return merged


two_axes = st.fixed_dictionaries({"dp": st.integers(1, 4), "tp": st.integers(1, 3)})


@settings(deadline=None, max_examples=150, database=None)
@given(two_axes, two_axes, st.sampled_from(["", "dp", "dp tp", "pp dp"]), st.data())
def test_no_rank_repeats_numbers_that_its_coordinate_has_drawn(
    saved: dict[str, int], later: dict[str, int], vary: str, data: st.DataObject
) -> None:
    """From whichever ranks the states come, a rank goes on, or begins anew, or is refused."""
    old, new = Layout(**saved), Layout(**later)
    ranks = data.draw(st.sets(st.integers(0, old.num_ranks - 1), min_size=1))
    with torch.random.fork_rng(devices=[]):
        states = states_of(old, ranks, vary)
        for rank in range(new.num_ranks):
            own = {axis: new.coordinate(rank)[axis] for axis in vary.split() if axis != "pp"}
            seen_by = [r for r in range(old.num_ranks) if own.items() <= old.coordinate(r).items()]
            streams, refused = streams_of(new, rank), False
            try:
                streams.load_state_dict(states)
            except SpecError:
                refused = True
            assert refused == (bool(seen_by) and not {*seen_by} & ranks)
            if not refused:
                with streams("x", vary=vary):
                    drawn = numbers(1)
                own = own | {"pp": 0} if "pp" in vary else own
                expected = torch.rand(2, generator=generator("x", **own)).tolist()
                assert drawn == (expected[1:] if seen_by else expected[:1])


def test_a_refused_state_changes_nothing_and_its_fix_works() -> None:
    layout = Layout(dp=2)
    with torch.random.fork_rng(devices=[]):
        states, rng = states_of(layout, [0], "dp"), streams_of(layout, 1)
        with rng("x", vary="dp"):
            numbers(3)
        before = rng.state_dict()
        with pytest.raises(SpecError, match="lack the stream 'x dp=1'"):
            rng.load_state_dict(states)
        assert torch.equal(rng.state_dict()["x dp=1"]["cpu"], before["x dp=1"]["cpu"])
        rng.load_state_dict({**states, **before})
        rng.load_state_dict({})  # without the states of x
        assert rng.state_dict() == {}


def test_a_state_without_sizes_is_refused_where_it_lacks_the_coordinate() -> None:
    """States of earlier versions do not say on which mesh they were saved."""
    with torch.random.fork_rng(devices=[]):
        states = states_of(Layout(dp=2), [0], "dp")
    del states["x dp=0"]["sizes"]
    streams_of(Layout(dp=2), 0).load_state_dict(states)
    with pytest.raises(SpecError):
        streams_of(Layout(dp=2), 1).load_state_dict(states)


def test_a_resumed_state_that_is_saved_at_once_still_begins_the_new_ranks() -> None:
    small, large = Layout(dp=1), Layout(dp=2)
    with torch.random.fork_rng(devices=[]):
        states = states_of(small, [0], "dp")
        again: dict[str, Any] = {}
        for rank in range(2):
            streams = streams_of(large, rank)
            streams.load_state_dict(states)
            again |= streams.state_dict()
        streams_of(large, 1).load_state_dict(again)


GOOD = torch.get_rng_state()


@pytest.mark.parametrize(
    "states",
    [
        [GOOD],
        {"x": {"cpu": GOOD[:-1]}},
        {"x": {"cpu": GOOD.int()}},
        {"x": {"cpu": b"bytes"}},
        {"x": {"cpu": GOOD, "cuda": 3}},
        {"x": GOOD},
        {3: {"cpu": GOOD}},
        {"": {"cpu": GOOD}},
        {"x dp": {"cpu": GOOD}},
        {"x dp=-1": {"cpu": GOOD}},
        {"x dp=1": {"cpu": GOOD, "sizes": torch.tensor([2, 2])}},
        {"x dp=1": {"cpu": GOOD, "sizes": torch.tensor([2.0])}},
    ],
)
def test_invalid_states_raise_and_change_nothing(rng: RandomStreams, states: Any) -> None:
    with rng("x"):
        numbers()
    before = rng.state_dict()
    with pytest.raises(SpecError):
        rng.load_state_dict(states)
    assert torch.equal(rng.state_dict()["x"]["cpu"], before["x"]["cpu"])


def test_no_state_is_loaded_inside_a_stream(rng: RandomStreams) -> None:
    with rng("x"), pytest.raises(MeshkitError):
        rng.load_state_dict({})


# ---------------------------------------------------------------- activation checkpointing


def weighted(rng: RandomStreams, inside: bool, **options: Any) -> tuple[Tensor, Tensor]:
    """Return a dropout mask and the gradient through its recomputation, which must be equal."""
    x = torch.ones(64, requires_grad=True)

    def drop(x: Tensor) -> Tensor:
        if not inside:
            return F.dropout(x * x, 0.5) * x  # the mask is needed again for the last factor
        with rng("dropout"):
            return F.dropout(x * x, 0.5) * x

    if inside:
        y = checkpoint(drop, x, **options)
    else:
        with rng("dropout"):
            y = checkpoint(drop, x, **options)
    numbers(3)  # what happens between forward and backward
    with rng("other"):
        numbers(3)
    y.sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad / 3


@pytest.mark.parametrize("reentrant", [False, True])
def test_around_a_checkpointed_function_the_mask_is_recomputed(
    rng: RandomStreams, reentrant: bool
) -> None:
    y, gradient = weighted(rng, inside=False, use_reentrant=reentrant)
    assert torch.equal(y, gradient)


def test_inside_a_checkpointed_function_replay_recomputes_it(rng: RandomStreams) -> None:
    for _ in range(2):  # from a stream that begins, and from one that goes on
        y, gradient = weighted(rng, inside=True, use_reentrant=False, context_fn=rng.replay)
        assert torch.equal(y, gradient)
    expected = F.dropout(torch.ones(3, 64), 0.5)  # only to say that masks of 64 differ
    assert not torch.equal(expected[0], expected[1])
    with rng("dropout"):  # the recomputation has moved no stream: two masks were drawn, not four
        drawn_numbers = numbers()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(generator("dropout").get_state())
        F.dropout(torch.ones(64), 0.5), F.dropout(torch.ones(64), 0.5)
        assert numbers() == drawn_numbers


def test_a_recomputation_inside_an_open_stream(rng: RandomStreams) -> None:
    """Forward outside and backward inside the same stream, which the recomputation enters again."""
    x = torch.ones(64, requires_grad=True)

    def drop(x: Tensor) -> Tensor:
        with rng("dropout"):
            return F.dropout(x * x, 0.5) * x

    y = checkpoint(drop, x, use_reentrant=False, context_fn=rng.replay)
    with rng("dropout"):
        before = numbers()
        y.sum().backward()
        after = numbers()
    assert x.grad is not None
    assert torch.equal(y, x.grad / 3)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(generator("dropout").get_state())
        F.dropout(torch.ones(64), 0.5)
        assert numbers() + numbers() == before + after


# ---------------------------------------------------------------- an accelerator, played


class Accelerator:
    """A stand-in for torch.cuda with two devices, each of which has a generator."""

    def __init__(self) -> None:
        self.generators = [torch.Generator().manual_seed(device) for device in range(2)]
        self.current = 1

    def get_rng_state(self) -> Tensor:
        return self.generators[self.current].get_state()

    def set_rng_state(self, state: Tensor) -> None:
        self.generators[self.current].set_state(state)

    def manual_seed(self, seed: int) -> None:
        self.generators[self.current].manual_seed(seed)

    def rand(self, count: int) -> list[float]:
        return torch.rand(count, generator=self.generators[self.current]).tolist()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    module = Accelerator()
    cpu = SimpleNamespace(get_rng_state=torch.get_rng_state, set_rng_state=torch.set_rng_state)
    stand_in = SimpleNamespace(random=cpu, default_generator=torch.default_generator)
    stand_in.get_device_module = {"cuda": module}.__getitem__
    stand_in.__dict__.update(uint8=torch.uint8, Tensor=Tensor, tensor=torch.tensor)
    monkeypatch.setattr(rng_module, "torch", stand_in, raising=True)
    return module


def test_the_current_device_draws_from_the_stream_too_and_no_other(cuda: Accelerator) -> None:
    rng = RandomStreams(LAYOUT, 5, "cuda", lambda: 3)
    expected = torch.rand(8, generator=generator("x", dp=1)).tolist()
    before = [each.get_state() for each in cuda.generators]
    outer = torch.get_rng_state()
    with rng("x", vary="dp"):
        drawn_numbers = cuda.rand(3)
        assert numbers() == expected[:4]
    with rng("x", vary="dp"):
        drawn_numbers += cuda.rand(5)
    with pytest.raises(ZeroDivisionError), rng("y"):
        torch.rand(cuda.current // 0)
    assert drawn_numbers == expected
    assert torch.equal(outer, torch.get_rng_state())
    for state, each in zip(before, cuda.generators, strict=True):
        assert torch.equal(state, each.get_state())


def test_a_state_without_the_accelerator_begins_there_anew(
    cuda: Accelerator, rng: RandomStreams
) -> None:
    on_both = RandomStreams(LAYOUT, 5, "cuda", lambda: 3)
    with on_both("x"):
        numbers(2), cuda.rand(2)
    state = on_both.state_dict()
    assert {*state["x"]} == {"cpu", "cuda"}
    rng.load_state_dict(state)  # on the cpu alone
    with rng("x"):
        assert numbers(2) == torch.rand(4, generator=generator("x")).tolist()[2:]
    on_both.load_state_dict(rng.state_dict())
    with on_both("x"):
        assert cuda.rand(2) == torch.rand(2, generator=generator("x")).tolist()
        assert numbers(2) == torch.rand(6, generator=generator("x")).tolist()[4:]


# ---------------------------------------------------------------- real ranks

Sizes = dict[str, int]


def draw_and_seed(sizes: Sizes) -> Any:
    """Return the coordinate, the seeds, and the draws outside and inside streams."""
    meshkit.init(seed=5)
    with meshkit.build_mesh(sizes) as mesh:
        before = torch.get_rng_state()
        seeds = {vary: mesh.seed(vary=vary) for vary in ("", "dp", "dp tp", "sp")}
        seeds["another base"] = mesh.seed(7, vary="tp dp")
        assert torch.equal(before, torch.get_rng_state())
        outside = [numbers()]
        with mesh.rng("dropout", vary=VARY):
            drawn = [numbers(), F.dropout(torch.ones(64), 0.5).tolist()]
        outside.append(numbers())
        with mesh.rng("dropout", vary="tp dp"):  # the same stream
            drawn.append(numbers())
        with mesh.rng("dropout"):
            alike = numbers()
        meshkit.init(seed=11)
        later = mesh.seed()
    meshkit.shutdown()
    return mesh.coordinate, seeds, [later, mesh.seed()], outside, drawn, alike


def test_seeds_and_streams_are_equal_over_sp_and_distinct_over_dp() -> None:
    by_rank = meshkit.spawn(draw_and_seed, 4, ({"dp": 2, "sp": 2, "tp": 1},), timeout=60)
    by_dp: dict[int, list[Any]] = {}
    for at, seeds, later, outside, drawn, alike in by_rank:
        place = {axis: at[axis] for axis in VARY}
        assert seeds == {
            "": stream_seed(5),
            "dp": stream_seed(5, dp=at["dp"]),
            "dp tp": stream_seed(5, **place),
            "sp": stream_seed(5, sp=at["sp"]),
            "another base": stream_seed(7, **place),
        }
        assert later == [stream_seed(11), stream_seed(5)]  # after the job, that of the mesh's job
        own = torch.Generator().manual_seed(stream_seed(5, "dropout", **place))
        assert drawn[0] == torch.rand(4, generator=own).tolist()
        own = torch.Generator().manual_seed(5)  # as if there had been no stream
        assert outside == [torch.rand(4, generator=own).tolist() for _ in range(2)]
        assert alike == by_rank[0][5]
        by_dp.setdefault(at["dp"], []).append(drawn)
    first, second = by_dp.values()
    assert (first[0], second[0]) == (first[1], second[1])
    assert all(a != b for a, b in zip(first[0], second[0], strict=True))


def collect_bases() -> Any:
    """Return the seeds without a seed for ``init``, and with one that it draws, twice."""
    results = []
    for seed in (None, "shared", "shared"):
        meshkit.init(seed=seed)
        with meshkit.build_mesh() as mesh, mesh.rng("x"):
            seeds = mesh.seed(), require_job().seed
        results.append((*seeds, stream_seed(torch.initial_seed())))
        meshkit.shutdown()
    return results


def test_the_base_seed_is_that_of_init_or_zero() -> None:
    first, second = meshkit.spawn(collect_bases, 2, timeout=60)
    (base, job_seed, _), *shared = first
    assert (base, job_seed) == (stream_seed(0), None)
    assert all(base == seeded == stream_seed(job_seed) for base, job_seed, seeded in shared)
    assert len({row[0] for row in first}) == 3
    assert second[1:] == shared  # one for all ranks


def draw_both(mesh: meshkit.Mesh) -> tuple[list[float], list[float]]:
    """Return the next numbers of both streams."""
    with mesh.rng("dropout", vary=VARY):
        dropout = numbers()
    with mesh.rng("noise", vary="dp"):
        return dropout, numbers()


def save_and_resume(first: Sizes, later: Sizes, folder: str) -> Any:
    """Save the streams of one mesh in a file a rank, and load all of them on another."""
    meshkit.init(seed=5)
    with meshkit.build_mesh(first) as mesh:
        draw_both(mesh)
        torch.save(mesh.rng.state_dict(), Path(folder) / f"{mesh.rank}.pt")
        mesh.barrier()
        saved = mesh.coordinate, draw_both(mesh)
    with meshkit.build_mesh(later) as mesh:
        merged: dict[str, Any] = {}
        for path in Path(folder).glob("*.pt"):
            merged |= torch.load(path)
        mesh.rng.load_state_dict(merged)
        return saved, (mesh.coordinate, sorted(mesh.rng.state_dict()), draw_both(mesh))


MESHES: list[tuple[Sizes, Sizes, set[tuple[int, int]]]] = [
    ({"dp": 2, "sp": 1, "tp": 2}, {"dp": 1, "sp": 1, "tp": 4}, {(0, 2), (0, 3)}),
    ({"dp": 4, "sp": 1, "tp": 1}, {"dp": 2, "sp": 2, "tp": 1}, set()),
]


def resume_all(folder: str) -> list[Any]:
    return [save_and_resume(*sizes[:2], f"{folder}/{n}") for n, sizes in enumerate(MESHES)]


def test_streams_are_resumed_on_a_mesh_of_other_sizes(tmp_path: Path) -> None:
    for number in range(len(MESHES)):
        (tmp_path / str(number)).mkdir()
    by_rank = meshkit.spawn(resume_all, 4, (str(tmp_path),), timeout=60)
    for (_, _, new), results in zip(MESHES, zip(*by_rank, strict=True), strict=True):
        check_resumed(results, new)


def check_resumed(results: tuple[Any, ...], new: set[tuple[int, int]]) -> None:
    """Check that known streams go on, and that those of new coordinates begin."""
    there = {(at["dp"], at["tp"]): drawn for (at, drawn), _ in results}
    begun = set()
    for _, (at, keys, drawn) in results:
        dp, tp = at["dp"], at["tp"]
        known = [f"dropout dp={dp} tp={tp}", f"noise dp={dp}"]
        if (dp, tp) in there:
            assert (keys, drawn) == (known, there[dp, tp])
        else:  # a new one of dropout, beside one of noise that goes on
            begun.add((dp, tp))
            own = torch.rand(4, generator=generator_of_job(dp, tp)).tolist()
            assert (keys, drawn) == (known[1:], (own, there[dp, 0][1]))
    assert begun == new


def generator_of_job(dp: int, tp: int) -> torch.Generator:
    return torch.Generator().manual_seed(stream_seed(5, "dropout", dp=dp, tp=tp))


def load_states_of_rank_0(folder: str) -> Any:
    """Save on rank 0 alone, load on all ranks; then the states of all."""
    meshkit.init(seed=5)
    path = Path(folder) / "checkpoint.pt"
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        draw_both(mesh)
        torch.save(mesh.rng.state_dict(), Path(folder) / f"{mesh.rank}.pt")
        if mesh.rank == 0:
            torch.save(mesh.rng.state_dict(), path)
        mesh.barrier()
        expected = draw_both(mesh)
        error = error_of(lambda: mesh.rng.load_state_dict(torch.load(path)))
        merged: dict[str, Any] = {}
        for rank in range(4):
            merged |= torch.load(Path(folder) / f"{rank}.pt")
        mesh.rng.load_state_dict(merged)
        return mesh.coordinate, error, draw_both(mesh) == expected


def test_a_state_of_rank_0_is_refused_on_all_others(tmp_path: Path) -> None:
    for at, error, goes_on in meshkit.spawn(load_states_of_rank_0, 4, (str(tmp_path),), timeout=60):
        assert goes_on
        if at == {"dp": 0, "tp": 0}:
            assert error is None
            continue
        assert error[0] == "SpecError"
        assert f"lack the stream 'dropout dp={at['dp']} tp={at['tp']}'" in error[1]
        assert "merged" in error[1]


def collect_refusals() -> Any:
    """Return the errors on a rank inside the mesh, and on one outside."""
    with meshkit.build_mesh(dp=1, sp=1, ranks=[0]) as mesh:
        errors = [error_of(lambda: mesh.seed(vary="dp"))]
        errors.append(error_of(lambda: mesh.rng("init", vary="dp")))
        errors.append(error_of(lambda: mesh.seed(vary="ttp")))
        errors.append(error_of(lambda: mesh.rng("init", vary="qq")))
        errors.append(error_of(lambda: mesh.seed(True)))
        errors.append(error_of(lambda: mesh.rng("init", seed=1.5)))  # type: ignore[arg-type]
        with mesh.rng("init"):  # nothing is varied: a rank outside may
            shared = numbers()
        return dist.get_rank(), errors, shared, mesh.seed()


def test_the_errors_of_a_rank_inside_and_of_one_outside() -> None:
    rows = meshkit.spawn(collect_refusals, 2, timeout=60)
    for _, errors, shared, seed in rows:
        kinds = [error and error[0] for error in errors]
        outside = None if errors is rows[0][1] else "CoordinateError"
        assert kinds == [outside] * 2 + ["UnknownAxisError"] * 2 + ["SpecError"] * 2
        assert (shared, seed) == (rows[0][2], stream_seed(0))
