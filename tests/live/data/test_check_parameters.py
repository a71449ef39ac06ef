"""mesh.check_parameters on real ranks: DDP, FSDP2, TP and experts, equal and drifted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import meshkit
from meshkit.core.compare import EqualAxes
from meshkit.live.data.checks import digest_model

Make = Callable[[meshkit.Mesh], nn.Module]


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


def check_all() -> dict[str, Any]:
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
def reports() -> list[dict[str, Any]]:
    return meshkit.spawn(check_all, 4, timeout=300)


def test_replicas_pass_and_the_report_is_equal_on_every_rank(reports: list[dict[str, Any]]) -> None:
    passed = {"ddp over all", "empty", "columns", "experts", "replicated experts"}
    passed |= {"fsdp over all", "hsdp", "fsdp and tp", "tp"}
    assert {name for name, found in reports[0].items() if found is None} == passed
    assert reports == [reports[0]] * 4
    assert [reports[0][f"gathers {sizes}"] for sizes, _ in MESHES] == [1, 1, 1]


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


@pytest.mark.parametrize("name", DRIFTS)
def test_the_first_parameter_and_the_ranks_are_named(
    reports: list[dict[str, Any]], name: str
) -> None:
    text, ranks = reports[0][name]
    summary, compared = DRIFTS[name]
    assert text.splitlines()[0] == f"mesh.check_parameters(model): the parameter {summary}"
    assert ranks == compared


def test_the_ranks_of_each_content_stand_with_their_coordinates(
    reports: list[dict[str, Any]],
) -> None:
    _, *lines = reports[0]["ddp, one bit"][0].splitlines()
    contents = [line.strip().partition(":  float32 (16,) ")[0] for line in lines[:2]]
    assert contents == ["ranks 0-1 and 3 (dp=0 sp=0; dp=0 sp=1; dp=1 sp=1)", "rank 2 (dp=1 sp=0)"]
    assert lines[-1] == (
        "  Fix: DistributedDataParallel(model, process_group=mesh.gradient_group()), "
        'or fully_shard(model, mesh=mesh.device_mesh("(dp sp)")).'
    )


def test_a_parameter_without_data_is_named_on_every_rank(reports: list[dict[str, Any]]) -> None:
    assert "up.weight cannot be read (NotImplementedError" in reports[0]["unreadable"][0]
    assert "on rank 1 (dp=0 sp=1)." in reports[0]["unreadable"][0]


class FullyShardedDataParallel(nn.Module):
    """A stand-in: FSDP1 is recognised by the name of its class."""


def test_parameters_whose_shards_are_no_dtensors_are_a_fault() -> None:
    layout, model = meshkit.Layout(dp=2), make_model()
    axes = EqualAxes.of(layout.sizes)
    assert digest_model(model, layout, 0, axes).fault == ""
    fsdp1 = nn.Sequential(FullyShardedDataParallel(), model)
    flat = "FullyShardedDataParallel holds flat shards of the parameters"
    assert digest_model(fsdp1, layout, 0, axes).fault == flat
    model.down.weight.ds_tensor = None  # type: ignore[assignment]
    assert digest_model(model, layout, 0, axes).fault == (
        "down.weight is partitioned by stage 3 of ZeRO"
    )
