"""Whole states move between two meshes on real ranks, planned once."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import meshkit
from tests.newer_torch import needs_order
from tests.pool import Pool

RANKS = 6  # of the pool
PATTERNS = {
    "*.q.weight": "o/dp/tp i -> o/tp i",
    "*norm*": "d/dp ... -> d ...",
    "step": "... -> ...",
    "*": "v/tp ... -> v/tp ...",
}


def whole_state() -> dict[str, Tensor]:
    """Return the state of one process, the same on every rank."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"a.q.weight": (8, 6), "b.q.weight": (16, 6), "a.norm": (12,), "embed": (8, 3)}
    state = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {**state, "step": torch.tensor(17)}


def cut(state: dict[str, Tensor], mesh: meshkit.Mesh, *, is_source: bool) -> dict[str, Tensor]:
    """Return the parts of a rank of one of the meshes, by hand."""
    dp, tp, own = mesh.coordinate["dp"], mesh.coordinate["tp"], {}
    for name, tensor in state.items():
        if name.endswith("q.weight") and is_source:
            tensor = tensor.chunk(mesh.size("dp"))[dp].chunk(mesh.size("tp"))[tp]
        elif name == "a.norm" and is_source:
            tensor = tensor.chunk(mesh.size("dp"))[dp]
        elif name.endswith("q.weight") or name == "embed":
            tensor = tensor.chunk(mesh.size("tp"))[tp]
        own[name] = tensor.clone()
    return own


def build(source: Any, target: Any) -> tuple[meshkit.Mesh, meshkit.Mesh]:
    """Return two meshes with axes dp and tp on some ranks."""
    (ranks, dp, tp), (others, dp2, tp2) = source, target
    return (
        meshkit.build_mesh(ranks=ranks, dp=dp, tp=tp),
        meshkit.build_mesh(ranks=others, dp=dp2, tp=tp2),
    )


def move_states(source: Any, target: Any, chunk: int, staged: bool) -> None:
    trainer, sampler = build(source, target)
    with trainer, sampler:
        state = whole_state()
        held = cut(state, trainer, is_source=True) if trainer.inside else None
        like, out = held, None
        if sampler.inside:
            out = {k: torch.zeros_like(v) for k, v in cut(state, sampler, is_source=False).items()}
            like = held or out
        sync = trainer.transfer(PATTERNS, to=sampler, like=like, chunk=chunk, staged=staged)
        for factor in (1, 3):
            given = {k: v * factor for k, v in held.items()} if held else None
            result = sync.begin(given, out=out).wait() if factor == 1 else sync(given, out=out)
            assert (result is out) if sampler.inside else result is None
            if out is not None:
                for name, part in cut(state, sampler, is_source=False).items():
                    torch.testing.assert_close(out[name], part * factor, rtol=0, atol=0)
        if out is not None:  # of another dtype
            out = {
                name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in out.items()
            }
        sync = trainer.transfer(PATTERNS, to=sampler, like=held or out)
        sync(held, out=out)
        if out is not None:
            for name, part in cut(state, sampler, is_source=False).items():
                torch.testing.assert_close(out[name], part.double(), rtol=0, atol=0)
        half = trainer.transfer(PATTERNS, to=sampler, like=like, dtype=torch.bfloat16)(held)
        if sampler.inside:
            for name, part in cut(state, sampler, is_source=False).items():
                # a counter is no floating-point number, so it keeps its dtype
                expected = part.bfloat16() if part.is_floating_point() else part
                assert half[name].dtype == expected.dtype
                assert torch.equal(half[name], expected)


@pytest.mark.parametrize(("chunk", "staged"), [(40, True), (2**20, False)])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param(([0, 1, 2, 3], 2, 2), ([4, 5], 1, 2), id="disjoint"),
        pytest.param(([5, 1], 2, 1), ([0, 2, 3, 4], 2, 2), id="to-more-ranks", marks=needs_order),
        pytest.param(([0, 1, 2, 3], 2, 2), ([2, 3, 4, 5], 2, 2), id="overlapping"),
        pytest.param(
            ([0, 1, 2, 3], 2, 2), ([3, 2, 1, 0], 1, 4), id="same-ranks", marks=needs_order
        ),
    ],
)
def test_each_rank_gets_its_parts(
    source: Any, target: Any, chunk: int, staged: bool, pool: Pool
) -> None:
    pool.run(move_states, source, target, chunk, staged)


# ------------------------------------------------------------------ stages, sums and DTensors


def move_stages() -> None:
    trainer = meshkit.build_mesh(ranks=range(4), pp=2, tp=2)
    sampler = meshkit.build_mesh(ranks=[4, 5], tp=2)
    with trainer, sampler:
        whole = torch.arange(24.0).reshape(2, 4, 3)
        held = wanted = None
        if trainer.inside:
            stage, tp = trainer.coordinate["pp"], trainer.coordinate["tp"]
            held = {f"layers.{stage}.weight": whole[stage].chunk(2)[tp].clone()}
            held["tied"] = whole[0].clone()
        if sampler.inside:
            wanted = {f"layers.{n}.weight": torch.zeros(4, 3) for n in range(2)}
            wanted["tied"] = torch.zeros(4, 3)
        patterns = {"layers*": "o/tp i -> o i", "tied": "o i -> o i"}
        trainer.transfer(patterns, to=sampler, like=held or wanted)(held, out=wanted)
        if wanted is not None:
            for stage in range(2):
                assert torch.equal(wanted[f"layers.{stage}.weight"], whole[stage])
            assert torch.equal(wanted["tied"], whole[0])
        back = {
            "layers.0*": "o i =tp -> o/tp i",
            "layers.1*": "o i -> o/tp i",
            "tied": "o i -> o i",
        }
        again = {k: torch.zeros_like(v) for k, v in held.items()} if held else None
        sampler.transfer(back, to=trainer, like=wanted or again)(wanted, out=again)
        if held is not None and again is not None:
            assert all(torch.equal(again[name], held[name]) for name in held)


def test_each_stage_of_a_pipeline_has_its_own_names(pool: Pool) -> None:
    pool.run(move_stages)


def move_sums() -> None:
    trainer = meshkit.build_mesh(ranks=range(4), dp=2, tp=2)
    other = meshkit.build_mesh(ranks=[4, 5], dp=2)
    with trainer, other:
        part = torch.arange(4.0) * (1 + trainer.coordinate["dp"]) if trainer.inside else None
        state = None if part is None else {"g": part}
        like = state or ({"g": torch.zeros(2)} if other.inside else None)
        out = trainer.transfer({"g": "d +dp =tp -> d/dp"}, to=other, like=like)(state)
        if other.inside:
            assert out["g"].tolist() == [[0.0, 3.0], [6.0, 9.0]][other.coordinate["dp"]]


def test_parts_of_a_sum_are_added_before_they_move(pool: Pool) -> None:
    pool.run(move_sums)


def move_dtensors() -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    trainer = meshkit.build_mesh(ranks=range(4), dp=2, tp=2)
    sampler = meshkit.build_mesh(ranks=[4, 5], tp=2)
    with trainer, sampler:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 10, bias=False), nn.Linear(10, 5))
        whole = {name: p.detach().clone() for name, p in model.named_parameters()}
        state = like = None
        if trainer.inside:
            fully_shard(model, mesh=trainer.device_mesh("dp"))
            state = like = model.state_dict()
        elif sampler.inside:
            cuts = sampler.device_mesh("tp")
            like = {
                name: distribute_tensor(torch.zeros_like(w), cuts, [Shard(0)], src_data_rank=None)
                for name, w in whole.items()
                if "bias" not in name
            }
            like["1.bias"] = torch.zeros(5)
        patterns = {"*.bias": "o/dp -> o", "*": "o/dp i -> o/tp i"}
        result = trainer.transfer(patterns, to=sampler, like=like)(
            state, out=like if sampler.inside else None
        )
        if sampler.inside:
            assert result is like
            for name, tensor in whole.items():
                local = like[name].to_local() if "bias" not in name else like[name]
                part = tensor if "bias" in name else tensor.chunk(2)[sampler.coordinate["tp"]]
                assert torch.equal(local, part), name


def test_fsdp_weights_move_to_dtensors_of_other_ranks(pool: Pool) -> None:
    pool.run(move_dtensors)


def drop_a_handle(staged: bool) -> None:
    trainer, sampler = build(([0, 1], 2, 1), ([2, 3, 4, 5], 2, 2))
    with trainer, sampler:
        state = {"w": torch.arange(256.0)} if trainer.inside else None
        out = {"w": torch.zeros(256)} if sampler.inside else None
        patterns = {"w": "i -> i"}
        sync = trainer.transfer(patterns, to=sampler, like=state or out, chunk=64, staged=staged)
        sync.begin(state, out=out)
        if state:  # the move that was begun has to end first, and its handle is gone
            state = {"w": state["w"] + 1}
        handle = sync.begin(state, out=out)
        del handle
        result = sync({"w": state["w"] * 2} if state else None, out=out)
        assert result is out
        if out:
            assert torch.equal(out["w"], (torch.arange(256.0) + 1) * 2)


@pytest.mark.parametrize("staged", [False, True])
def test_a_move_ends_before_the_next_one_though_nobody_waited(pool: Pool, staged: bool) -> None:
    pool.run(drop_a_handle, staged)


def move_uneven_dtensors(tp: int) -> None:
    """Move shards of FSDP2 that differ in size, of whole weights or of a part along tp."""
    from torch.distributed.fsdp import fully_shard

    trainer = meshkit.build_mesh(ranks=range(4), dp=4 // tp, tp=tp)
    sampler = meshkit.build_mesh(ranks=[4, 5], tp=2)
    with trainer, sampler:
        torch.manual_seed(0)
        whole = {"weight": torch.randn(9 * tp, 3), "bias": torch.randn(9 * tp)}
        state = None
        if trainer.inside:
            model = nn.Linear(3, 9)
            for name, own in model.named_parameters():
                own.data = whole[name].chunk(tp)[trainer.coordinate["tp"]].clone()
            fully_shard(model, mesh=trainer.device_mesh("dp"))
            state = model.state_dict()
        mine, like = {}, {}
        if sampler.inside:
            mine = {n: w.tensor_split(2)[sampler.coordinate["tp"]] for n, w in whole.items()}
            like = {name: torch.zeros_like(part) for name, part in mine.items()}
        cut = "o/tp/dp" if tp > 1 else "o/dp"
        patterns = {"weight": f"{cut} i -> o/tp i", "bias": f"{cut} -> o/tp"}
        sync = trainer.transfer(patterns, to=sampler, like=like if sampler.inside else state)
        result = sync(state, out=like if sampler.inside else None)
        if sampler.inside:
            assert all(torch.equal(result[name], part) for name, part in mine.items())


@pytest.mark.parametrize("tp", [1, 2])
def test_uneven_shards_of_fsdp_move(pool: Pool, tp: int) -> None:
    pool.run(partial(move_uneven_dtensors, tp))


# ------------------------------------------------------------------ errors


def collect_errors() -> dict[str, tuple[str, str]]:
    """Return the class and the text of the error of each mistake on this rank."""
    trainer = meshkit.build_mesh(ranks=range(4), dp=2, tp=2, arrival_timeout=5)
    sampler = meshkit.build_mesh(ranks=[4, 5], tp=2, arrival_timeout=5)
    errors = {}
    with trainer, sampler:
        held = {"w": torch.zeros(2, 3)} if trainer.inside else None
        wanted = {"w": torch.zeros(2, 3)} if sampler.inside else None

        def attempt(name: str, work: Any) -> Any:
            try:
                return work()
            except meshkit.MeshkitError as error:
                errors[name] = type(error).__name__, str(error)
                return None

        good = {"w": "o/dp i -> o/tp i"}
        plan = lambda patterns, like, **options: trainer.transfer(  # noqa: E731
            patterns, to=sampler, like=like, **options
        )
        like = held or wanted
        attempt("no pattern", lambda: plan({"x": "o i -> o i"}, like))
        attempt("no like", lambda: plan(good, None))
        attempt("another name", lambda: plan({"*": good["w"]}, held or {"v": torch.zeros(2, 3)}))
        attempt("room", lambda: plan(good, held or {"w": torch.zeros(4, 3)}))
        attempt("integers", lambda: plan(good, like, dtype=torch.int8))
        attempt("dims", lambda: plan({"w": "o i j -> o i j"}, like))
        options = {} if dist.get_rank() else {"staged": True}
        attempt("options differ", lambda: plan(good, like, **options))
        attempt("dtype", lambda: plan(good, like, dtype="bf16"))
        sync = attempt("good", lambda: plan(good, like))
        other = {"w": torch.zeros(3, 3)} if dist.get_rank() == 0 else held
        attempt("another shape", lambda: sync(other, out=wanted))
        with torch.inference_mode():
            constant = {"w": torch.zeros(2, 3)}
        expanded = {"w": torch.zeros(3).expand(2, 3)}
        attempt("out as the state", lambda: sync(like))
        attempt("expanded", lambda: sync(held, out=wanted and expanded))
        attempt("inference", lambda: sync(held, out=wanted and constant))
        sync(held, out=wanted)
        joined = held and {"w": torch.zeros(4, 3)}
        attempt("joined", lambda: plan({"w": "(h/dp o) i -> h o/tp i"}, joined or wanted))
    return errors


def test_mistakes_are_named_on_every_rank_before_anything_moves(pool: Pool) -> None:
    by_rank = pool.run(collect_errors)
    for rank, errors in enumerate(by_rank):
        assert "good" not in errors
        for name in (
            "no pattern",
            "no like",
            "another name",
            "room",
            "dims",
            "integers",
            "options differ",
        ):
            kind, text = errors[name]
            assert kind in ("SpecError", "DisagreementError"), (rank, name)
            assert "transfer" in text
    assert "no pattern matches w" in by_rank[0]["no pattern"][1]
    for text in (errors["another name"][1] for errors in by_rank):
        assert "w: on the source alone." in text
        assert "v: on the target alone." in text
    assert by_rank[0]["another shape"][0] == "SpecError"
    for name in ("out as the state", "expanded", "inference"):
        assert [errors[name][0] for errors in by_rank[4:]] == ["SpecError"] * 2
        assert "Fix:" in by_rank[4][name][1]
    assert all("such as sizes={" in errors["joined"][1] for errors in by_rank)
    assert [len(errors) for errors in by_rank] == [13] * 6
    assert "gave up: SpecError" in by_rank[1]["another shape"][1]
