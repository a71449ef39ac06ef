"""A run of plain tensor-parallel weights is saved on one mesh and goes on on any other."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import meshkit
from meshkit.transfer.copies import CHUNK, sketch_of, sketches_differ
from tests.faults import error_of
from tests.newer_torch import needs_order
from tests.pool import Pool
from tests.promises import BUSY

RANKS = 4  # of the pool
LAYOUT = {"*up.weight*": "o/tp i", "*down.weight*": "o i/tp"}


class Block(nn.Module):
    """Two layers, cut by columns and by rows over tp."""

    def __init__(self, mesh: meshkit.Mesh | None) -> None:
        super().__init__()
        self.mesh = mesh
        torch.manual_seed(5)
        self.up, self.down = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)
        self.norm = nn.LayerNorm(4)
        self.double()
        if mesh is not None:
            for layer, side in ((self.up, "o/tp i"), (self.down, "o i/tp")):
                part = mesh.local_state({"w": layer.weight}, {"w": side})["w"]
                layer.weight = nn.Parameter(part)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        if self.mesh is None:
            return self.down(self.up(x).tanh())
        x = self.mesh.redistribute(x, "b d =tp -> b d *tp")
        x = self.down(self.up(x).tanh())
        return self.mesh.redistribute(x, "b d +tp -> b d =tp")


def train(model: Block, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        x = torch.arange(8.0, dtype=torch.float64).reshape(2, 4).sin() + step
        loss = (model(x) - x.flip(0)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def resume(first: dict[str, int], second: dict[str, int], path: str) -> list[float]:
    """Train on one mesh, save, load on another, and go on."""
    with meshkit.build_mesh(first) as mesh:
        model = Block(mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        losses = train(model, optimizer, range(3))
        moments = get_optimizer_state_dict(model, optimizer)
        whole = mesh.whole_state({"model": model.state_dict(), "optimizer": moments}, LAYOUT)
        if mesh.rank == 0:
            torch.save(whole, path)
        mesh.barrier()
    with meshkit.build_mesh(second) as mesh:
        model = Block(mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        local = mesh.local_state(torch.load(path, weights_only=True), LAYOUT)
        model.load_state_dict(local["model"])
        set_optimizer_state_dict(model, optimizer, local["optimizer"])
        return [*losses, *train(model, optimizer, range(3, 6))]


@pytest.mark.parametrize(
    ("first", "second"), [({"dp": 2, "tp": 2}, {"dp": 1, "tp": 4}), ({"tp": 4}, {"dp": 4})], ids=str
)
def test_weights_and_moments_go_on_on_another_mesh(
    first: dict[str, int], second: dict[str, int], pool: Pool, tmp_path: Any
) -> None:
    model = Block(None)
    expected = train(model, torch.optim.AdamW(model.parameters(), lr=0.05), range(6))
    for losses in pool.run(resume, first, second, str(tmp_path / "state.pt")):
        assert losses == pytest.approx(expected, rel=1e-12)


def collect_parts() -> list[Any]:
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        whole = {"w": torch.arange(15).reshape(5, 3), "n": [torch.tensor(3), 7], "c": torch.ones(2)}
        local = mesh.local_state(whole, {"w": "o/dp/tp i", "n*": "d/dp"})
        again = mesh.local_state(whole, {"w": "o/dp/tp i"}, sizes={"o": 5, "i": 3})
        assert again["w"].equal(local["w"])
        texts = []
        for layout in ({"w": "o/dp -> o"}, {"w": "o/dp"}, {"w": "o/xp i"}, None):
            try:
                mesh.local_state(whole, layout)  # type: ignore[arg-type]
            except meshkit.MeshkitError as error:
                texts.append(type(error).__name__)
        return [local["w"].tolist(), local["n"], local["c"].tolist(), texts]


def test_parts_of_different_sizes_numbers_and_mistakes(pool: Pool) -> None:
    rows = torch.arange(15).reshape(5, 3)
    expected = [rows[:2], rows[2:3], rows[3:4], rows[4:]]
    for part, (w, n, c, texts) in zip(expected, pool.run(collect_parts), strict=True):
        assert w == part.tolist()
        assert [int(n[0]), n[1]] == [3, 7]
        assert c == [1, 1]
        assert texts == ["SpecError", "SpecError", "UnknownAxisError", "SpecError"]


def join_parts() -> list[Any]:
    """Join parts of different sizes, in another order on rank 1; then make mistakes."""
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        whole = {"w": torch.arange(15).reshape(5, 3), "v": torch.arange(7.0), "n": torch.ones(1)}
        layout = {"w": "o/dp/tp i", "v": "o/tp", "n": "o/dp"}
        local = mesh.local_state(whole, layout)
        order = [*local.items()][:: -1 if mesh.rank == 1 else 1]
        joined = mesh.whole_state(dict(order), layout)
        equal = all(torch.equal(joined[name], tensor) for name, tensor in whole.items())
        texts = [equal, [*joined] == [name for name, _ in order]]
        late = {"w": torch.zeros(2, 3)} if mesh.rank else {"w": torch.zeros(1, 3)}
        calls: list[Any] = [
            lambda: mesh.whole_state(late, {"w": "o/tp i"}),
            lambda: mesh.whole_state({} if mesh.rank == 3 else late, {"w": "o/tp i"}),
            lambda: mesh.whole_state(late, {"w": "o i/tp" if mesh.rank else "o/tp i"}),
            lambda: mesh.whole_state(whole, {"x": "o/tp"}),
            lambda: mesh.local_state(whole, {"w[0]": "o/tp i"}),
            lambda: mesh.whole_state({"w": torch.ones(6, 2)}, {"w": "(q h/tp) i"}),
        ]
        for call in calls:
            try:
                call()
                texts.append("")
            except meshkit.MeshkitError as error:
                texts.append(str(error))
        return texts


def test_parts_of_different_sizes_are_joined_and_others_are_named_on_all_ranks(pool: Pool) -> None:
    for texts in pool.run(join_parts):
        assert texts[:2] == [True, True]
        assert "the parts of w along tp are no whole tensor: its parts have other" in texts[2]
        assert "Rank 0 (dp=0 tp=0): [1, 3] in float32." in texts[2]
        assert "Rank 3 (dp=1 tp=1): no such tensor." in texts[3]
        assert "ranks disagree about mesh.whole_state()" in texts[4]
        assert "layout['x'] matches no tensor." in texts[5]
        assert "layout['w[0]'] matches no tensor." in texts[6]
        assert "such as sizes={'h': 64}." in texts[7]


SIDES_WITH_DOTS = ["o/dp ...", "... i/tp", "o/tp ... i/dp", "... (two i/dp/tp)", "(two o/tp) ..."]


def cut_where_dots_stand_for_other_dims() -> None:
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        for side, shape in itertools.product(SIDES_WITH_DOTS, ((14, 10), (6, 3, 10), (2, 1, 2))):
            whole, sizes = {"w": torch.randn(shape)}, {"two": 2} if "two" in side else None
            local = mesh.local_state(whole, {"w": side}, sizes=sizes)
            again = mesh.whole_state(local, {"w": side}, sizes=sizes)
            assert again["w"].equal(whole["w"]), (side, shape)


def test_parts_may_have_different_sizes_beside_dots(pool: Pool) -> None:
    pool.run(cut_where_dots_stand_for_other_dims)


# how a weight is cut before FSDP2 cuts the part of each rank over dp
CUT_BEFORE = [
    ("o/tp i", None),
    ("o i/tp", None),
    ("(two h/tp) i", {"two": 2}),
    ("(h/tp two) i", {"two": 2}),
    ("... i/tp", None),
    ("o i +tp", None),
    ("o/tp/dp i", None),
    ("o i", None),
]


def join_what_fsdp_does_not_know() -> None:
    """Shard the parts of tp over dp; their DTensors know nothing of tp."""
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        torch.manual_seed(0)
        for side, sizes in CUT_BEFORE:
            whole = torch.randn(10, 6)
            before = side.replace("/dp", "")
            part = mesh.local_state({"w": whole}, {"w": before}, sizes=sizes)["w"]
            if "+tp" in side:
                part = whole * (1 + 2 * mesh.coordinate["tp"]) / 4  # a quarter, and three
            model = nn.Linear(1, 1, bias=False)
            model.weight = nn.Parameter(part)
            fully_shard(model, mesh=mesh.device_mesh("dp"))
            state = {"names[0]": model.state_dict(), "step": torch.tensor(3)}
            state = mesh.whole_state(state, {"*.weight": side}, sizes=sizes)
            joined = state["names[0]"]["weight"]
            assert type(joined) is Tensor
            torch.testing.assert_close(joined, whole, msg=side)
            model = nn.Linear(1, 1, bias=False)
            model.weight = nn.Parameter(whole)
            fully_shard(model, mesh=mesh.device_mesh("(dp tp)"))  # it knows all
            for layout in {"*": "o i" if sizes else side}, {"*": "o/dp/tp i"}, {}:
                assert mesh.whole_state(model.state_dict(), layout)["weight"].equal(whole)
            local = mesh.local_state(model.state_dict(), {"*": "o/tp i"})["weight"]
            assert local.equal(whole.chunk(2)[mesh.coordinate["tp"]])


def test_a_layout_says_how_dtensors_are_cut_along_other_axes(pool: Pool) -> None:
    pool.run(join_what_fsdp_does_not_know)


def keep_ties(path: str) -> list[Any]:
    """Save a state with tied weights, plain and of FSDP, and cut it again; return what is tied."""

    def tied(state: Any) -> bool:
        first, second = state["embed"]["weight"], state["head"]["weight"]
        pair = [x.to_local() if hasattr(x, "to_local") else x for x in (first, second)]
        return pair[0].data_ptr() == pair[1].data_ptr()

    def tie(whole: Tensor) -> dict[str, Any]:
        embed, head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        embed.weight = head.weight = nn.Parameter(whole.clone())
        return {"embed": embed.state_dict(), "head": head.state_dict(), "step": torch.tensor(3)}

    torch.manual_seed(0)
    whole = torch.randn(8, 4)
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        part, layout = whole.chunk(2)[mesh.coordinate["tp"]], {"*.weight": "v/tp d"}
        state = mesh.whole_state(tie(part), layout)
        assert state["embed"]["weight"].equal(whole)
        torch.save(state, f"{path}{mesh.rank}")
        loaded = torch.load(f"{path}{mesh.rank}")
        local = mesh.local_state(loaded, layout)
        assert local["head"]["weight"].equal(part)
        sides = {"embed.*": "v/tp d", "head.*": "v d/tp"}
        model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(4, 8, bias=False))
        model[0].weight = model[1].weight
        fully_shard(model, mesh=mesh.device_mesh("(dp tp)"))
        names = {"embed": model[0].state_dict(), "head": model[1].state_dict()}
        return [
            tied(state),
            tied(loaded),
            tied(local),
            tied(mesh.local_state(tie(whole), sides)),
            tied(mesh.whole_state(names, {})),
            tied(mesh.local_state(names, {})),
        ]


def test_tied_weights_stay_tied_unless_they_are_cut_in_other_ways(
    pool: Pool, tmp_path: Path
) -> None:
    assert (
        pool.run(keep_ties, str(tmp_path / "state")) == [[True] * 3 + [False] + [True] * 2] * RANKS
    )


def tie_unusual_numbers() -> list[bool]:
    """Return whether weights of NaN, and of a dtype that cannot be compared, stay tied."""
    numbers = torch.tensor([[torch.nan, 1.0]]), torch.zeros(1, 2).to(torch.float8_e4m3fn)
    with meshkit.build_mesh(tp=RANKS) as mesh:
        states = [mesh.whole_state({"a": x, "b": x}, {"*": "v/tp d"}) for x in numbers]
    return [state["a"] is state["b"] for state in states]


def test_weights_of_nan_and_of_float8_stay_tied(pool: Pool) -> None:
    assert pool.run(tie_unusual_numbers) == [[True, True]] * RANKS


def untie_on_one_rank() -> tuple[bool, Tensor]:
    """Give two weights that are tied on all ranks but one."""
    with meshkit.build_mesh(tp=RANKS) as mesh:
        weight = torch.full((1, 2), float(mesh.rank))
        state = {"a": weight, "b": weight if mesh.rank < 3 else torch.full((1, 2), 7.0)}
        state = mesh.whole_state(state, {"*": "v/tp d"})
        return state["a"] is state["b"], state["b"][:, 0]


def test_weights_that_another_rank_does_not_tie_are_two(pool: Pool) -> None:
    for is_tied, column in pool.run(untie_on_one_rank):
        assert not is_tied
        assert column.tolist() == [0, 1, 2, 7]


def join_experts_over_a_part_of_dp() -> list[str]:
    """Shard two experts over pairs of ranks of dp; a layout of dp takes each pair for two parts."""
    experts, errors = torch.arange(48.0).reshape(2, 4, 6), list[str]()
    with meshkit.build_mesh(dp=4) as mesh, mesh.view(ep=2, dp=2, order="ep dp") as view:
        expert = experts[view.coordinate["ep"]]
        state = {"w": distribute_tensor(expert, view.device_mesh("dp"), [Shard(0)])}
        for side in "o/dp i", "o i +dp", "o i/dp":
            with pytest.raises(meshkit.SpecError) as caught:
                mesh.whole_state(state, {"w": side})
            errors.append(f"{caught.value.summary} {caught.value.fix_text}")
        whole = view.whole_state(state, {"w": "o/ep i"})["w"]
        torch.testing.assert_close(whole, experts.flatten(0, 1), rtol=0, atol=0)
    return errors


def join_over_a_part_of_dp_without_a_layout() -> list[str]:
    """Shard tensors over pairs of ranks of dp: other experts, replicas, and own names."""
    experts, errors = torch.arange(48.0).reshape(2, 4, 6), list[str]()
    with meshkit.build_mesh(dp=4) as mesh, mesh.view(ep=2, dp=2, order="ep dp") as view:
        ep, dp = view.coordinate["ep"], view.device_mesh("dp")
        expert = distribute_tensor(experts[ep], dp, [Shard(0)])
        for layout in {}, {"w": "o i"}:
            with pytest.raises(meshkit.DisagreementError) as caught:
                mesh.whole_state({"a": torch.ones(1), "w": expert}, layout)
            errors.append(str(caught.value))
        assert view.whole_state({"w": expert}, {"w": "o/ep i"})["w"].equal(experts.flatten(0, 1))
        copy = distribute_tensor(experts[0], dp, [Shard(0)])  # HSDP by hand
        own = {f"expert{ep}": expert, "copy": copy, "whole": torch.ones(1)}
        for layout in {}, {"copy": "o i"}, {"*": "... =dp"}:
            state = mesh.whole_state(own, layout)
            assert state["copy"].equal(experts[0])
            assert state[f"expert{ep}"].equal(experts[ep])
        assert mesh.whole_state({"w": expert}, {"w": "o i =dp"})["w"].equal(experts[ep])
    return errors


@needs_order
def test_without_a_layout_dtensors_over_a_part_of_an_axis_must_be_replicas(pool: Pool) -> None:
    by_rank = pool.run(join_over_a_part_of_dp_without_a_layout)
    assert all(errors == by_rank[0] for errors in by_rank)
    for text in by_rank[0]:
        assert "w is a DTensor over some of the ranks along dp, and differs there." in text
        assert "mesh.view(...).whole_state" in text


@needs_order
def test_a_dtensor_over_a_part_of_an_axis_is_refused_on_all_ranks(pool: Pool) -> None:
    for errors in pool.run(join_experts_over_a_part_of_dp):
        assert all("w is a DTensor over some of the ranks along dp" in error for error in errors)
        assert all("mesh.view(...)" in error for error in errors)
        assert len(errors) == 3


# states in which two tensors have one name after the keys are joined
SAME_NAMES: list[tuple[dict[Any, Any], str]] = [
    ({"ema.w": torch.zeros(2, 2), "ema": {"w": torch.ones(2, 2)}}, "ema.w"),
    ({"a": {"b.c": torch.zeros(2, 2)}, "a.b": {"c": torch.ones(2, 2)}}, "a.b.c"),
    ({"w": [torch.zeros(2, 2)], "w.0": torch.ones(2, 2)}, "w.0"),
    ({1: torch.zeros(2, 2), "1": torch.ones(2, 2)}, "1"),
    ({"": {"w": torch.zeros(2, 2)}, "w": torch.ones(2, 2)}, "w"),
]


def refuse_equal_names() -> list[str]:
    texts = []
    with meshkit.build_mesh(tp=RANKS) as mesh:
        for (state, _), layout in itertools.product(SAME_NAMES, ({}, {"*": "o/tp i"})):
            for call in (mesh.whole_state, mesh.local_state):
                with pytest.raises(meshkit.SpecError) as caught:
                    call(state, layout)
                texts.append(caught.value.summary)
    return texts


def test_two_tensors_of_one_name_are_refused_by_their_name(pool: Pool) -> None:
    for texts in pool.run(refuse_equal_names):
        for (_, name), part in zip(SAME_NAMES, zip(*[iter(texts)] * 4, strict=True), strict=True):
            assert {*part} == {f"two tensors of the state have the name {name}."}


def name_axes_and_odd_states() -> list[Any]:
    """Cut along an absent axis, along no axis, and pass states that are none on one rank."""
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        w = torch.ones(2, 3)
        is_odd = mesh.rank == 0
        states: list[tuple[Any, dict[str, str]]] = [
            ({"w": w}, {"w": "o/xp i"}),
            ({"w": w.to_sparse() if is_odd else w}, {"w": "o/tp i"}),
            (torch.nn.Linear(3, 2) if is_odd else {"w": w}, {"w": "o/tp i"}),
            (None if is_odd else {"w": w}, {}),
        ]
        texts: list[Any] = [[*mesh.whole_state({"w": w}, {"w": "o/cp/tp i +ep"})["w"].shape]]
        for state, layout in states:
            try:
                texts.append(mesh.whole_state(state, layout))
            except meshkit.MeshkitError as error:
                texts.append(f"{type(error).__name__}: {error}")
        mesh.agree("the end", 0)
        for odd in (torch.nn.Linear(3, 2), None):
            with pytest.raises(meshkit.SpecError, match="not a mapping"):
                mesh.local_state(odd, {})  # type: ignore[arg-type]
        return texts


def test_unknown_axes_and_states_that_are_none_raise_on_all_ranks(pool: Pool) -> None:
    for shape, *errors in pool.run(name_axes_and_odd_states):
        assert shape == [4, 3]
        assert errors[0].startswith("UnknownAxisError: mesh.whole_state(state, ")
        assert "w: x is a sparse tensor." in errors[1]
        assert "the state is a Linear, not a mapping." in errors[2]
        assert "the state is a NoneType, not a mapping." in errors[3]


REFUSED: dict[str, dict[str, Any]] = {  # what the odd rank passes in place of the arguments
    "an unknown axis": {"layout": {"w": "o/zz i"}},
    "a glob without a tensor": {"layout": {"none": "o/tp i"}},
    "another number of dims": {"w": torch.ones(2, 2, 2)},
    "a DTensor that does not divide": {"layout": {"z": "(o k/tp) i"}, "sizes": {"k": 3}},
    "an unknown size": {"layout": {"a": "(o h/dp) i"}},
    "one name twice": {"b": {"c": torch.ones(2)}, "b.c": torch.ones(2)},
}


def refuse_whole_dtensors(odd: int) -> dict[str, str]:
    """Return the errors of this rank if one rank refuses a state with DTensors, and a result."""
    texts = {}
    with meshkit.build_mesh(dp=2, tp=2, timeout=20) as mesh:
        parts = [distribute_tensor(torch.ones(4, 3), mesh.device_mesh("dp tp"), [Shard(0)] * 2)]
        parts += [distribute_tensor(torch.ones(4, 3), mesh.device_mesh("tp"), [Shard(0)])]
        for kind, bad in REFUSED.items():
            state: dict[str, Any] = {"a": parts[0], "w": torch.ones(4, 3), "z": parts[1]}
            own = {"layout": {"w": "o/tp i", "z": "o/dp i"}, "sizes": None}
            if mesh.rank == odd:
                own |= {name: bad[name] for name in own if name in bad}
                state |= {name: value for name, value in bad.items() if name not in own}
            began, text = time.monotonic(), "no error"
            try:
                mesh.local_state(state, own["layout"], sizes=own["sizes"])
            except meshkit.MeshkitError as error:
                text = f"{type(error).__name__}: {error}"
            assert time.monotonic() - began < 3 + BUSY, text
            texts[kind] = text
        whole = mesh.local_state({"a": parts[0], "z": parts[1]}, {"z": "o/dp i"})
        texts["later"] = str([[*x.shape] for x in whole.values()])
    return texts


def give_other_dtensors(odd: int) -> list[str]:
    """Return the errors of this rank if one rank has other DTensors of the same DeviceMesh."""
    texts = []
    with meshkit.build_mesh(dp=2, tp=2, timeout=20) as mesh:
        whole = torch.ones(4, 3)
        x = distribute_tensor(whole, mesh.device_mesh("dp tp"), [Shard(0)] * 2)
        copies = distribute_tensor(whole, mesh.device_mesh("dp tp"), [Replicate()] * 2)
        for other in ({"a": x}, {"a": x, "c": x}, {"a": x, "b": copies}):
            began = time.monotonic()
            with pytest.raises(meshkit.DisagreementError) as caught:
                mesh.local_state(other if mesh.rank == odd else {"a": x, "b": x}, {})
            assert time.monotonic() - began < 3 + BUSY
            texts.append(str(caught.value))
    return texts


@pytest.mark.parametrize("odd", [0, 3])
def test_ranks_with_other_dtensors_of_one_device_mesh_all_raise(pool: Pool, odd: int) -> None:
    by_rank = pool.run(give_other_dtensors, odd)
    for text in by_rank[odd]:
        assert f"Rank {odd} has a (4, 3) torch.float32" in text
        assert "Other names, shapes or placements: rank" in text
    for texts in by_rank:
        assert all("DTensors" in text for text in texts), texts


def swap_the_device_meshes() -> str:
    """Return the error of this rank if two ranks have each name on the other DeviceMesh."""
    with meshkit.build_mesh(dp=2, tp=2, timeout=20) as mesh:
        meshes = map(mesh.device_mesh, ("dp", "tp"))
        tensors = [distribute_tensor(torch.ones(4), each, [Shard(0)]) for each in meshes]
        state = dict(zip("ab", tensors[:: -1 if mesh.rank in (0, 3) else 1], strict=True))
        began = time.monotonic()
        with pytest.raises(meshkit.DisagreementError) as caught:
            mesh.local_state(state, {})
        assert time.monotonic() - began < 3 + BUSY
        return str(caught.value)


def test_ranks_with_each_name_on_another_device_mesh_all_raise(pool: Pool) -> None:
    assert all("DTensors" in text for text in pool.run(swap_the_device_meshes))


@pytest.mark.parametrize("odd", [0, 3])
def test_a_rank_that_refuses_a_state_with_dtensors_tells_the_others(pool: Pool, odd: int) -> None:
    by_rank = pool.run(refuse_whole_dtensors, odd)
    for rank, texts in enumerate(by_rank):
        assert texts.pop("later") == "[[4, 3], [2, 3]]"
        for kind, text in texts.items():
            own = by_rank[odd][kind]
            assert own.startswith(("SpecError", "UnknownAxisError")), (kind, own)
            if rank != odd:
                assert text.startswith("DisagreementError"), (kind, rank, text)
                assert f"Rank {odd} has raised {own.partition(':')[0]}: " in text, (kind, text)


def save_without_a_side() -> list[Any]:
    """Return what each forgotten part raises, and whether copies pass that rounding has changed."""
    with meshkit.build_mesh(dp=1, ep=2, tp=2) as mesh:
        tp, ep = mesh.coordinate["tp"], mesh.coordinate["ep"]
        whole = torch.arange(24.0).reshape(4, 6).sin()
        part = {"w": whole.chunk(2)[tp].clone(), "norm": torch.ones(3)}
        experts = {"norm": torch.ones(3), "experts.w": whole + ep}
        odd = {"step": torch.tensor(3.0 + tp), "norm": torch.ones(3)}
        over_ep = mesh.device_mesh("ep")
        sharded = {"w": distribute_tensor(part["w"], over_ep, [Shard(0)])}
        reports: list[Any] = []
        for state in (part, experts, odd, sharded, {"rng": torch.full((4,), tp)}):
            error = error_of(lambda state=state: mesh.whole_state(state, {}))
            reports.append(error)
        near = {"w": whole * (1 + 1e-6 * tp), "running_mean": torch.rand(2) + mesh.rank}
        near |= {f"expert{ep}.w": whole, "nan": torch.full((2,), torch.nan), "empty": whole[:0]}
        assert mesh.whole_state(near, {})["w"].equal(near["w"])
        assert mesh.whole_state(odd, {"step": "... =tp"})["step"] == 3 + tp
        assert mesh.whole_state(part, {"w": "o/tp ..."})["w"].equal(whole)
        assert mesh.whole_state(experts, {"experts.w": "o/ep ..."})["experts.w"].shape == (8, 6)
        assert mesh.whole_state(sharded, {"w": "o/tp ..."})["w"].shape == (4, 6)
    with meshkit.build_mesh(dp=4) as mesh:  # data ranks may hold their own numbers
        mesh.whole_state({"seen": torch.full((2,), mesh.rank)}, {})
    return reports


def differ(first: torch.Tensor, second: torch.Tensor) -> bool:
    return sketches_differ(sketch_of(first), sketch_of(second))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("size", [1, 64, 3 * CHUNK // 2])
def test_copies_differ_by_rounding_and_parts_by_more(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, size, dtype=torch.float64).to(dtype)
    rounding = torch.finfo(dtype).eps
    assert not differ(x, x * (1 + rounding))
    assert not differ(x, x * (1 + 1e-5))
    assert differ(x, y)
    assert not differ(1e-12 * x, 1e-12 * y)  # noise of a tensor of zeros
    if size > CHUNK:
        assert differ(x, torch.roll(x, CHUNK))


def test_norm_weights_that_training_has_hardly_moved_are_parts() -> None:
    torch.manual_seed(0)
    x, y = 1 + 0.003 * torch.randn(2, 1024)
    assert differ(x, y)
    nan = torch.full((3,), torch.nan)
    assert not differ(nan, nan)
    huge = torch.full((3,), 1e300, dtype=torch.float64)
    assert not differ(huge, huge * (1 + 1e-15))


def save_unreadable() -> None:
    """Save tensors without readable elements, and many of which one is no copy, by rounding."""
    with meshkit.build_mesh(ep=2, tp=2) as mesh:
        sparse = torch.eye(3).to_sparse()
        meta = torch.ones(2, device="meta")
        state = {f"expert{mesh.coordinate['ep']}.w": torch.ones(2), "w[0]": torch.ones(3)}
        assert {*mesh.whole_state({**state, "s": sparse}, {})} >= {"s", "w[0]"}
        assert mesh.whole_state({**state, "meta": meta}, {})["meta"].is_meta
        state["w[0]"] = state["w[0]"] * (1 + mesh.coordinate["tp"])
        error = error_of(lambda: mesh.whole_state(state, {"*": "..."}))
        assert error is not None
        key = error[1].rpartition('or "')[2].partition('"')[0]
        assert mesh.whole_state(state, {key: "... =tp", "*": "..."})["w[0]"].shape == (3,)


def test_tensors_without_elements_are_no_copies_and_a_name_with_brackets_is_quoted(
    pool: Pool,
) -> None:
    pool.run(save_unreadable)


@needs_order
def test_a_part_that_the_layout_forgets_is_refused_with_fixes_that_work(pool: Pool) -> None:
    by_rank = pool.run(save_without_a_side)
    assert all(reports == by_rank[0] for reports in by_rank)
    assert {kind for kind, _ in by_rank[0]} == {"DisagreementError"}
    lines = [text.splitlines() for _, text in by_rank[0]]
    names = [("w", "tp"), ("experts.w", "ep"), ("step", "tp"), ("w", "tp"), ("rng", "tp")]
    for (name, axis), (summary, *_, fix) in zip(names, lines, strict=True):
        assert f"{name} differs along {axis}, and the layout does not say" in summary
        assert f'"{name}": "... ={axis}"' in fix
        assert (f'"{name}": "o/{axis} ..."' in fix) == (name != "step")
