"""mesh.check_batch and mesh.check_parameters on real ranks: the same result on each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import meshkit
from meshkit.data import checks
from meshkit.data.canonical import canonical_text
from meshkit.data.checks import fingerprint, list_batch, list_model
from meshkit.data.conflicts import EqualAxes
from tests.faults import error_of

Make = Callable[[meshkit.Mesh], nn.Module]

GOOD = ["good", "order", "strided", "bfloat16", "bare"]


ODD = {
    "by rank": "batch['y'] differs at dp=0.",
    "one sample set": "Equal in every leaf: dp=0 (ranks 0-1) and dp=1 (ranks 2-3).",
    "other keys": "batch['y'] differs at dp=1.",
    "other count": "batch[2] differs at dp=0.",
    "other dtype": "batch differs at dp=0.",
    "other shape": "batch differs at dp=0.",
    "other plain": "batch['n'] differs at dp=0.",
    "other empty": "batch['e'] differs at dp=0.",
    "one bit": "batch differs at dp=1.",
    "an object": "batch['m'] is a set, on rank 2 (dp=1 sp=0).",
    "unreadable": "batch['x'] cannot be read (",
}


CASES: dict[str, tuple[Any, ...]] = {
    "dp": ([*GOOD, *ODD],),
    "dp sp": (["bare", "by rank"], ("dp", "sp")),
    "none": (["bare", "one sample set"], ()),
    "one dp": (["bare", "by rank", "objects"], ("dp",), {"dp": 1, "sp": 4}),
}


Reports = dict[str, dict[str, Any]]


def make_batch(name: str, rank: int, dp: int) -> Any:
    """Return the batch of a case; ``dp`` is the data coordinate."""
    tokens = torch.arange(8).view(2, 4) + 100 * dp
    cases: dict[str, Any] = {
        "good": {"x": tokens, "m": [tokens.bool(), (1.5, "a", b"b", None, True)], "e": {}},
        "order": dict([("a", tokens), ("b", 1)][:: 1 if rank % 2 else -1]),
        "strided": {"x": (tokens.T.contiguous().T if rank % 2 else tokens)[:, ::2]},
        "bfloat16": {"x": tokens.bfloat16(), "n": torch.tensor(dp), "0": torch.zeros(0, 3)},
        "by rank": {"x": tokens, "y": tokens + rank},
        "one sample set": {"x": tokens - 100 * dp},
        "other keys": {"x": tokens, **({"y": tokens} if rank == 3 else {})},
        "other count": [tokens] * (2 if rank == 1 else 3),
        "other dtype": tokens.int() if rank == 1 else tokens,
        "other shape": tokens.view(4, 2) if rank == 1 else tokens,
        "other plain": {"x": tokens, "n": 1.0 if rank == 1 else 1},
        "other empty": {"x": tokens, "e": () if rank == 1 else []},
        "one bit": torch.tensor([0.0, dp, -0.0 if rank == 3 else 0.0]),
        "an object": {"x": tokens, "m": {1, 2} if rank == 2 else 1},
        "objects": {1, 2},
        "unreadable": {"x": tokens.to_sparse() if rank == 2 else tokens},
        "bare": tokens,
    }
    return cases[name]


def check_batches(names: list[str], data: tuple[str, ...] = ("dp",), sizes: Any = None) -> Any:
    """Return the error of each batch, and a sum over the mesh afterwards."""
    report: dict[str, Any] = {}
    with meshkit.build_mesh(**(sizes or {"dp": 2, "sp": 2})) as mesh:
        for name in names:
            try:
                mesh.check_batch(make_batch(name, mesh.rank, mesh.coordinate["dp"]), data=data)
                report[name] = None
            except meshkit.MeshkitError as error:
                report[name] = f"{type(error).__name__}: {error}"
        ones = torch.ones(())
        dist.all_reduce(ones, group=mesh.group())
        report["ranks"] = int(ones)
    return report


def check_all_cases(cases: list[tuple[Any, ...]]) -> Any:
    """Check the batches of all cases."""
    return [check_batches(*case) for case in cases]


@pytest.fixture(scope="module")
def reports() -> Reports:
    """Return the errors, equal on all four ranks, by the axes that divide the samples."""
    by_rank = meshkit.spawn(check_all_cases, 4, ([*CASES.values()],), timeout=120)
    assert all(of_rank == by_rank[0] for of_rank in by_rank)
    assert [report.pop("ranks") for report in by_rank[0]] == [4] * len(CASES)  # nothing is broken
    return dict(zip(CASES, by_rank[0], strict=True))


def test_good_and_odd_batches(reports: Reports) -> None:
    errors = reports["dp"]
    assert {name: errors[name] for name in GOOD} == dict.fromkeys(GOOD)
    for name, line in ODD.items():
        assert line in errors[name], name
    lines = errors["other dtype"].splitlines()
    assert lines[0].startswith("BatchError: mesh.check_batch(batch, data=('dp',)): ")
    assert lines[2].startswith("  rank 0 (dp=0 sp=0):  int64 (2, 4) ")
    assert lines[3].startswith("  rank 1 (dp=0 sp=1):  int32 (2, 4) ")
    assert "rank 0 (dp=0 sp=0):  missing" not in errors["other keys"]
    assert "rank 2 (dp=1 sp=0):  missing" in errors["other keys"]


def test_other_axes_divide_the_samples(reports: Reports) -> None:
    errors = reports["dp sp"]
    assert errors["by rank"] is None  # each rank its own
    assert "Equal in every leaf: dp=0 sp=0 (rank 0) and dp=0 sp=1 (rank 1)." in errors["bare"]
    errors = reports["none"]
    assert errors["one sample set"] is None
    assert "batch differs.\n  ranks 0-1 (dp=0 sp=0; dp=0 sp=1):  int64 (2, 4) " in errors["bare"]
    assert errors["bare"].startswith("BatchError: mesh.check_batch(batch, data=()): ")


def test_one_data_coordinate_need_not_differ(reports: Reports) -> None:
    errors = reports["one dp"]
    assert errors["bare"] is None
    assert "batch['y'] differs at dp=0." in errors["by rank"]
    assert "batch is a set, on rank 0 (dp=0 sp=0)." in errors["objects"]  # though all hold the same


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (torch.ones(2, 3), torch.ones(3, 2).T, True),
        (torch.ones(2), torch.ones(2, requires_grad=True), True),
        (torch.tensor(1.0), torch.tensor([1.0]), False),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        (torch.tensor([1, 2]).byte(), torch.tensor([1, 2]).char(), False),
        (torch.empty(0, 3), torch.empty(3, 0), False),
        ([1, [2]], (1, (2,)), True),
        ([[], 1], [{}, 1], False),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, False),
        ({1: "x"}, {"1": "x"}, False),
        (True, 1, False),
        (b"x", "x", False),
        (float("nan"), float("nan"), True),
    ],
)
def test_which_values_are_equal(first: Any, second: Any, same: bool) -> None:
    assert not list_batch(first, "").fault
    assert (list_batch(first, "").head() == list_batch(second, "").head()) == same


def test_an_unreadable_leaf_is_a_fault_and_no_error() -> None:
    paths = [row.name for row in list_batch({"a": [1, {"b": None}]}, "").rows]
    assert paths == ["batch['a'][0]", "batch['a'][1]['b']"]
    assert list_batch([1, {2}], "").fault == "batch[1] is a set"
    assert list_batch(torch.ones(1, device="meta"), "").fault.startswith("batch cannot be read (")
    endless: list[Any] = []
    endless.append(endless)
    assert "RecursionError" in list_batch(endless, "").fault


# ---------------------------------------------------------------- parameters


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(self.up(x)).relu()).square().mean()


def make_model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model()


def train(mesh: meshkit.Mesh, model: nn.Module, *axes: str) -> nn.Module:
    """Train for two steps on tokens that differ along the axes."""
    index = mesh.group_rank(*axes) if axes else 0
    generator = torch.Generator().manual_seed(1 + index)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(2, 8, generator=generator)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def ddp(mesh: meshkit.Mesh, *group: str) -> nn.Module:
    """Train under DDP over some axes, with other tokens on each rank of dp sp."""
    wrapped = DistributedDataParallel(make_model(), process_group=mesh.group(*group))
    return train(mesh, wrapped, "dp", "sp")


def fsdp(mesh: meshkit.Mesh, pattern: str) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = make_model()
    fully_shard(model, mesh=mesh.device_mesh(pattern))
    return train(mesh, model, "dp", "sp")


def tp(mesh: meshkit.Mesh) -> Model:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    styles = {"up": ColwiseParallel(), "norm": SequenceParallel(), "down": RowwiseParallel()}
    model: Model = parallelize_module(make_model(), mesh.device_mesh("dp tp")["tp"], styles)
    return model


def fsdp_and_tp(mesh: meshkit.Mesh) -> Model:
    from torch.distributed.fsdp import fully_shard

    model = tp(mesh)
    fully_shard(model, mesh=mesh.device_mesh("dp tp")["dp"])
    return model


def shift(model: nn.Module, name: str, by: float = 1.0) -> nn.Module:
    """Change one number of this rank's part of a parameter."""
    with torch.no_grad():
        parameter: Any = dict(model.named_parameters())[name]
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        local.view(-1)[-1] += by
    return model


def experts(mesh: meshkit.Mesh, marked: bool) -> nn.Module:
    """Return a dense layer, and an expert that differs along ep."""
    dense = make_model().up
    torch.manual_seed(mesh.coordinate["ep"])
    expert = nn.Linear(8, 8)
    for parameter in expert.parameters() if marked else ():
        parameter.allreduce = False  # type: ignore[attr-defined]
    return nn.ModuleDict({"dense": dense, "expert": expert})


def replicated_experts(mesh: meshkit.Mesh) -> nn.Module:
    """Return experts that differ along ep, as DTensors that are whole on each rank of dp."""
    from torch.distributed.tensor import DTensor, Replicate

    model = experts(mesh, True)
    expert: Any = model.get_submodule("expert")
    for name, parameter in [*expert.named_parameters()]:
        whole = DTensor.from_local(parameter.data, mesh.device_mesh("dp"), [Replicate()])
        setattr(expert, name, nn.Parameter(whole))
        getattr(expert, name).allreduce = False
    return model


def columns(mesh: meshkit.Mesh) -> nn.Module:
    """Return a plain layer that differs along tp, as Megatron's tensors do."""
    return make_model(mesh.coordinate["tp"])


def number_of_gathers(mesh: meshkit.Mesh) -> int:
    """Return the number of collectives of a check that finds nothing."""
    calls, gather = [], dist.all_gather
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_gather", lambda *a, **k: calls.append(1) or gather(*a, **k))
        mesh.check_parameters(make_model())
    return len(calls)


def on(rank: int, mesh: meshkit.Mesh, change: Callable[[Any], Any], model: Any) -> Any:
    return change(model) if mesh.rank == rank else model


def without_bias(model: Any) -> Any:
    model.down = nn.Linear(16, 4, bias=False)
    return model


DP_SP: dict[str, Make] = {
    "ddp over dp": lambda mesh: ddp(mesh, "dp"),
    "ddp over all": lambda mesh: ddp(mesh, "dp", "sp"),
    "ddp, one bit": lambda mesh: on(
        2, mesh, lambda m: shift(m, "module.norm.bias"), ddp(mesh, "dp", "sp")
    ),
    "missing": lambda mesh: on(3, mesh, without_bias, make_model()),
    "other dtype": lambda mesh: on(1, mesh, lambda m: m.double(), make_model()),
    "unreadable": lambda mesh: on(1, mesh, lambda m: m.to("meta"), make_model()),
    "no parameter": lambda mesh: on(0, mesh, lambda m: nn.Identity(), make_model()),
    "empty": lambda mesh: nn.Identity(),
}
SHARDED: dict[str, Make] = {
    "fsdp over dp": lambda mesh: fsdp(mesh, "dp"),
    "fsdp over all": lambda mesh: fsdp(mesh, "(dp sp)"),
    "hsdp": lambda mesh: fsdp(mesh, "dp sp"),
    "hsdp, one shard": lambda mesh: on(
        3, mesh, lambda m: shift(m, "up.weight"), fsdp(mesh, "dp sp")
    ),
}
DP_TP: dict[str, Make] = {
    "fsdp and tp": fsdp_and_tp,
    "tp": tp,
    "tp, one shard": lambda mesh: on(1, mesh, lambda m: shift(m, "up.weight"), tp(mesh)),
    "replicated over tp": lambda mesh: on(
        3, mesh, lambda m: shift(m, "norm.weight"), fsdp_and_tp(mesh)
    ),
}
PLAIN: dict[str, Make] = {
    "columns": columns,
    "columns, drifted": lambda mesh: on(2, mesh, lambda m: shift(m, "down.bias"), columns(mesh)),
}
EP: dict[str, Make] = {
    "experts": lambda mesh: experts(mesh, True),
    "replicated experts": replicated_experts,
    "unmarked": lambda mesh: experts(mesh, False),
    "a dense layer": lambda mesh: on(
        3, mesh, lambda m: shift(m, "dense.bias"), experts(mesh, True)
    ),
    "an expert": lambda mesh: on(2, mesh, lambda m: shift(m, "expert.bias"), experts(mesh, True)),
}
MESHES: list[tuple[dict[str, Any], dict[str, Make]]] = [
    ({"dp": 2, "sp": 2}, {**DP_SP, **SHARDED}),
    ({"dp": 2, "tp": 2}, {**PLAIN, **DP_TP}),
    ({"dp": 2, "ep": 2}, EP),
]


def check_models() -> dict[str, Any]:
    """Return the error of each model, and the number of collectives of each check."""
    report: dict[str, Any] = {}
    for sizes, cases in MESHES:
        with meshkit.build_mesh(**sizes) as mesh:
            for name, make in cases.items():
                model = make(mesh)
                try:
                    mesh.check_parameters(model)
                    report[name] = None
                except meshkit.DisagreementError as error:
                    report[name] = str(error), sorted(error.requests)
            report[f"gathers {sizes}"] = number_of_gathers(mesh)
            ones = torch.ones(())
            dist.all_reduce(ones, group=mesh.group())  # no rank waits in another collective
    return report


@pytest.fixture(scope="module")
def models() -> list[dict[str, Any]]:
    return meshkit.spawn(check_models, 4, timeout=300)


def test_replicas_pass_and_the_report_is_equal_on_every_rank(models: list[dict[str, Any]]) -> None:
    passed = {"ddp over all", "empty", "columns", "experts", "replicated experts"}
    passed |= {"fsdp over all", "hsdp", "fsdp and tp", "tp"}
    assert {name for name, found in models[0].items() if found is None} == passed
    assert models == [models[0]] * 4
    assert [models[0][f"gathers {sizes}"] for sizes, _ in MESHES] == [1, 1, 1]


DRIFTS = {
    "ddp over dp": ("module.up.weight differs along sp.", [0, 1, 2, 3]),
    "ddp, one bit": ("module.norm.bias differs along dp sp.", [0, 1, 2, 3]),
    "missing": ("down.bias differs along dp sp.", [0, 1, 2, 3]),
    "no parameter": ("up.weight differs along dp sp.", [0, 1, 2, 3]),
    "other dtype": ("up.weight differs along dp sp.", [0, 1, 2, 3]),
    "fsdp over dp": ("up.weight differs along sp.", [0, 1]),
    "hsdp, one shard": ("up.weight differs along dp.", [1, 3]),
    "columns, drifted": ("down.bias differs along dp.", [0, 2]),
    "tp, one shard": ("up.weight differs along dp.", [1, 3]),
    "replicated over tp": ("norm.weight differs along tp.", [2, 3]),
    "unmarked": ("expert.weight differs along ep.", [0, 1, 2, 3]),
    "a dense layer": ("dense.bias differs along dp ep.", [0, 1, 2, 3]),
    "an expert": ("expert.bias differs along dp.", [0, 2]),
}


def test_the_first_parameter_and_the_ranks_are_named(models: list[dict[str, Any]]) -> None:
    for name, (summary, compared) in DRIFTS.items():
        text, ranks = models[0][name]
        line = f"mesh.check_parameters(model): the parameter {summary}"
        assert (text.splitlines()[0], ranks) == (line, compared), name


def test_a_parameter_without_data_is_named_on_every_rank(models: list[dict[str, Any]]) -> None:
    assert "up.weight cannot be read (NotImplementedError" in models[0]["unreadable"][0]
    assert "on rank 1 (dp=0 sp=1)." in models[0]["unreadable"][0]


class Statistics(nn.Module):
    """A layer with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("scale", torch.ones(()))


def check_buffers() -> dict[str, Any]:
    """Return the error of each check of buffers, and of other arguments."""
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        torch.manual_seed(0)
        model, drifted, along_tp = Statistics(), Statistics(), Statistics()
        if mesh.coordinate["dp"] == 1:
            drifted.norm.running_mean += 1
        if mesh.coordinate["tp"] == 1:  # which may hold another part
            along_tp.norm.running_mean += 1
        arguments: dict[str, Any] = {
            "module": drifted,
            "equal": dict(model.named_buffers()),
            "along tp": along_tp.named_buffers(),
            "mapping": dict(drifted.named_buffers()),
            "pairs": drifted.named_buffers(),
            "state": drifted.state_dict(),
            "parameters": dict(drifted.named_parameters()),
            "one is missing": {} if mesh.rank == 2 else dict(model.named_buffers()),
            "list": [*model.parameters()],
            "number": 3 if mesh.rank == 1 else model,
            "values": {"a": 3},
        }
        errors = {
            name: error_of(lambda model=model: mesh.check_parameters(model))
            for name, model in arguments.items()
        }
        dist.all_reduce(torch.ones(()), group=mesh.group())
        return errors


def test_buffers_are_compared_as_parameters() -> None:
    by_rank = meshkit.spawn(check_buffers, 4, timeout=60)
    assert by_rank == [by_rank[0]] * 4
    errors = by_rank[0]
    equal = "module", "equal", "along tp", "parameters"
    assert {name: errors.pop(name) for name in equal} == dict.fromkeys(equal)
    assert {kind for kind, _ in errors.values()} == {"DisagreementError"}
    texts = {name: text for name, (_, text) in errors.items()}
    for name in ("mapping", "pairs", "state"):
        assert "the buffer norm.running_mean differs along dp." in texts[name]
        assert "so buffers must be equal there" in texts[name]
        assert (
            "Fix: dist.broadcast(buffer, group_src=0, group=mesh.gradient_group())" in texts[name]
        )
    assert "the buffer scale differs" in texts["one is missing"]
    for name in ("list", "number", "values"):
        assert "without names" in texts[name]
        assert "a module, or names with tensors" in texts[name]


class FullyShardedDataParallel(nn.Module):
    """A stand-in: FSDP1 is recognised by the name of its class."""


def test_parameters_whose_shards_are_no_dtensors_are_a_fault() -> None:
    layout, model = meshkit.Layout(dp=2), make_model()
    axes = EqualAxes.of(layout.sizes)
    assert list_model(model, layout, 0, axes).fault == ""
    fsdp1 = nn.Sequential(FullyShardedDataParallel(), model)
    flat = "FullyShardedDataParallel holds flat shards of the parameters"
    assert list_model(fsdp1, layout, 0, axes).fault == flat
    model.down.weight.ds_tensor = None  # type: ignore[assignment]
    assert list_model(model, layout, 0, axes).fault == (
        "down.weight is partitioned by stage 3 of ZeRO"
    )


# ---------------------------------------------------------------- fingerprints

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex128]


def numbers(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(40, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_flip_of_bits_changes_it(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHUNK", 16)  # several chunks, and a part of one
    whole = numbers(dtype)
    seen = {fingerprint(whole)}
    changes = 0
    for mask in (1, 128):  # the lowest bit, and the sign
        size = whole.element_size()
        for places in [*combinations(range(12), 1), *combinations(range(12), 2), (0, 1, 2, 3)]:
            changed = whole.clone()
            content = changed.view(torch.uint8)
            for place in places:
                content[place * size + (size - 1 if mask == 128 else 0)] ^= mask
            seen.add(fingerprint(changed))
            changes += 1
    assert len(seen) == changes + 1


def test_an_empty_shard() -> None:
    assert fingerprint(torch.empty(0, 3)) == fingerprint(torch.empty(0))


class Image(torch.Tensor):
    """A class of another library; its repr leaves elements out, as that of any large tensor."""


ODD_ONE = torch.zeros(5000)
ODD_ONE[2500] = 1e-3
KINDS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x.as_subclass(Image),
    torch.Tensor.to_sparse,
    lambda x: x.view(50, 100).to_sparse_csr(),
    lambda x: x.view(50, 100).to_sparse_csc(),
    lambda x: torch.nested.nested_tensor([x, x[:9]], layout=torch.jagged),
    lambda x: torch.nested.nested_tensor([x, x[:9]]),
    lambda x: torch.return_types.max((x, x.long())),
    lambda x: torch.nn.utils.rnn.pack_sequence([x]),
]


@pytest.mark.filterwarnings("ignore:.*(beta|prototype)")  # of torch, for its sparse tensors
@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_an_element_that_a_repr_leaves_out_counts(kind: int) -> None:
    whole = torch.arange(5000.0)
    values = [KINDS[kind](x) for x in (whole, whole + ODD_ONE, whole.clone())]
    texts = [canonical_text(value, checks.tensor_text) for value in values]
    assert texts[0] == texts[2] != texts[1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.zeros(0, 3), torch.zeros(0, 5)),
        (torch.zeros(1), torch.zeros(1, dtype=torch.float64)),
        (torch.tensor([0.1]), torch.tensor([0.1]).nextafter(torch.tensor([1.0]))),
        (torch.zeros(4, 5), torch.zeros(5, 4)),
        (torch.ones(2).to_sparse(), torch.zeros(2).to_sparse()),
        (torch.empty(3, device="meta"), torch.empty(4, device="meta")),
    ],
)
def test_tensors_that_differ_have_different_texts(
    first: torch.Tensor, second: torch.Tensor
) -> None:
    texts = [canonical_text(tensor, checks.tensor_text) for tensor in (first, second, first)]
    assert texts[0] == texts[2] != texts[1]


def test_a_module_with_weights_has_no_text_since_its_repr_leaves_them_out() -> None:
    with pytest.raises(meshkit.SpecError, match="check_parameters") as caught:
        canonical_text({"model": nn.Linear(2, 2)}, checks.tensor_text)
    assert "weights" in str(caught.value)
    assert canonical_text([nn.GELU()], checks.tensor_text) == "[GELU(approximate='none')]"
