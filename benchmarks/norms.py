"""Norms: clip 1,000 gradients on dp=2 ep=2 tp=2, beside torchtitan, Megatron and torch.

The job has 8 ranks. A weight of a layer is cut by FSDP over dp and ep and by tp, and a weight of an
expert over dp and ep. Both sides clip the same local gradients, and must report the same norm:

* torchtitan's ``clip_grad_norm_`` takes DTensors, as meshkit does here;
* Megatron's functions take plain gradients, those that its rank counts and all of them. They ask
  for a GPU, so the module sees a torch that makes its tensors on the CPU;
* ``torch.nn.utils.clip_grad_norm_`` takes the DTensors of the layers alone, which have one mesh.

A repetition times one call of each side. It begins after a barrier on a group of its own, and its
time is that of the slowest rank.
"""

from __future__ import annotations

import ast
import importlib.util
import math
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

import meshkit
from meshkit.launch.torch_aborts import collective_count

from .harness import Goal, Row, alternate, compare, single

RANKS = 8
SIZES = {"dp": 2, "ep": 2, "tp": 2}
LAYERS, EXPERTS = 800, 200  # parameters
SIDE = 32  # a local gradient is SIDE x SIDE
HALF = Goal("ratio", "<=", 0.5)
ONE = Goal("ours", "<=", 1)
TITAN, MEGATRON, TORCH = "torchtitan", "megatron-core", "torch.nn.utils"
INSTALL = {TITAN: "pip install --no-deps torchtitan", MEGATRON: "pip install megatron-core"}
LAYOUT = {"layers.*": "o/dp/ep i/tp", "experts.*": "e/ep o/dp i"}

Clip = Callable[[], float]  # clips, and returns the norm
Counted = list[tuple[str, float]]


def run(quick: bool) -> list[Row]:
    """Return the rows of all peers, and those of the collectives of a call."""
    return meshkit.spawn(measure, RANKS, (2 if quick else 15,), timeout=600)[0]


def measure(repeats: int) -> list[Row]:
    """Compare the norms of both sides, then time them; return the rows. Collective.

    Raises:
        RuntimeError: if a peer reports another norm.
    """
    torch.set_num_threads(1)
    meshkit.init(device="cpu")
    with meshkit.build_mesh(SIZES) as mesh:
        barrier, rows = dist.new_group(), []
        named, plain = make_parameters(mesh)
        layers = {name: p for name, p in named.items() if name.startswith("layers")}
        ours_plain = partial(mesh.clip_grad_norm, plain, 1.0, layout=LAYOUT)
        pairs: list[tuple[str, str, Callable[[], Any], Clip | None]] = [
            ("DTensors", TITAN, partial(mesh.clip_grad_norm, named, 1.0), titan_clip(named)),
            ("gradients", MEGATRON, ours_plain, megatron_clip(mesh, plain)),
            (
                "DTensors of one mesh",
                TORCH,
                partial(mesh.clip_grad_norm, layers, 1.0),
                torch_clip(layers),
            ),
        ]
        for noun, peer, ours, theirs in pairs:
            count = LAYERS if peer == TORCH else LAYERS + EXPERTS
            what = f"clip {count:,} {noun}"
            if theirs is None:
                rows.append(Row(what, RANKS, peer, "us", missing=INSTALL[peer]))
                continue
            check_norms(peer, float(ours()), theirs())
            figures = alternate(
                partial(microseconds, ours, barrier),
                partial(microseconds, theirs, barrier),
                repeats,
            )
            rows.append(compare(what, RANKS, peer, "us", figures, HALF))
            calls = [count_collectives(mesh, side) for side in (ours, theirs)]
            rows.append(single(f"{what}: collectives", RANKS, "calls", [calls[0]], ONE))
            rows.append(single(f"{what}: collectives of {peer}", RANKS, "calls", [calls[1]]))
    return rows


def make_parameters(mesh: meshkit.Mesh) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return parameters as DTensors, and the same local gradients as plain parameters."""
    dense, sparse = mesh.device_mesh("(dp ep) tp"), mesh.device_mesh("dp ep")
    draw = torch.Generator()
    named: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for number in range(LAYERS + EXPERTS):
        is_expert = number >= LAYERS
        name = f"{'experts' if is_expert else 'layers'}.{number}.weight"
        rank = mesh.group_rank("dp", "ep") if is_expert else mesh.rank
        shape = (1, SIDE, SIDE) if is_expert else (SIDE, SIDE)
        local = torch.randn(shape, generator=draw.manual_seed(number * RANKS + rank)) / 10
        placements = [Shard(1), Shard(0)] if is_expert else [Shard(0), Shard(1)]
        device_mesh = sparse if is_expert else dense
        named[name] = nn.Parameter(DTensor.from_local(torch.zeros(shape), device_mesh, placements))
        named[name].grad = DTensor.from_local(local.clone(), device_mesh, placements)
        plain[name] = nn.Parameter(torch.zeros(shape))
        plain[name].grad = local
    return named, plain


def titan_clip(named: dict[str, Tensor]) -> Clip | None:
    """Return torchtitan's function on DTensors, or None if it is not installed.

    Its module imports the whole trainer, so the two functions are taken out of the file.
    """
    spec = importlib.util.find_spec("torchtitan")
    if spec is None or spec.origin is None:
        return None
    source = Path(spec.origin).with_name("distributed") / "utils.py"
    names = ("clip_grad_norm_", "_clip_grad_norm_with_ep")
    tree = ast.parse("from __future__ import annotations\n" + source.read_text())
    body = [node for node in tree.body if getattr(node, "name", "") in names]
    known = {"torch": torch, "dist": dist, "math": math, "DTensor": DTensor}
    known |= {"Iterable": Iterable, "DeviceMesh": DeviceMesh}
    header = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*header, *body], []), str(source), "exec"), known)
    clip: Any = known["clip_grad_norm_"]
    return lambda: float(clip([*named.values()], 1.0, ep_enabled=True))


def megatron_clip(mesh: meshkit.Mesh, plain: dict[str, Tensor]) -> Clip | None:
    """Return Megatron's functions on plain gradients, or None if it is not installed."""
    if importlib.util.find_spec("megatron") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core import utils
        from megatron.core.optimizer import clip_grads
    on_cpu = SimpleNamespace(**vars(torch))
    on_cpu.zeros = lambda *args, device=None, **options: torch.zeros(*args, **options)
    on_cpu.tensor = lambda *args, device=None, **options: torch.tensor(*args, **options)
    clip_grads.torch = utils.torch = on_cpu
    group, counts_experts = mesh.group(), mesh.coordinate["tp"] == 0
    parameters = [*plain.items()]

    def clip() -> float:
        grads = [p.grad for name, p in parameters if counts_experts or name.startswith("layers")]
        norm = clip_grads.get_grad_norm_fp32(grads, 2.0, group)
        every, factor = [p.grad for _, p in parameters], 1.0 / (norm + 1e-6)
        if factor < 1.0:  # as in clip_grad_by_total_norm_fp32, which asserts the type of a GPU
            noop = torch.zeros(1, dtype=torch.int)
            scale = clip_grads.multi_tensor_scale_impl
            clip_grads.multi_tensor_applier(scale, noop, [every, every], factor)
        return float(norm)

    return clip


def torch_clip(layers: dict[str, Tensor]) -> Clip:
    """Return torch's own function, whose norm is a DTensor that is summed for its value."""

    def clip() -> float:
        norm: Any = nn.utils.clip_grad_norm_(layers.values(), 1.0)
        return float(norm.full_tensor())

    return clip


def check_norms(peer: str, ours: float, theirs: float) -> None:
    """Raise RuntimeError if two norms differ; meshkit has clipped first, to 1."""
    if abs(theirs - min(ours, 1.0)) > 1e-4:
        raise RuntimeError(f"meshkit clips from {ours}, and {peer} then finds {theirs}")


def microseconds(work: Callable[[], Any], barrier: dist.ProcessGroup) -> float:
    """Return the microseconds of one call on the slowest rank. Collective."""
    dist.barrier(barrier)
    began = time.perf_counter()
    work()
    taken = torch.tensor((time.perf_counter() - began) * 1e6, dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX, group=barrier)
    return float(taken)


def count_collectives(mesh: meshkit.Mesh, work: Callable[[], Any]) -> float:
    """Return how many collectives a call begins on the groups of the mesh. Collective."""
    axes = [(), ("dp",), ("ep",), ("tp",), ("dp", "ep")]
    groups = {mesh.group(*some) for some in axes}
    before = sum(collective_count(group) or 0 for group in groups)
    work()
    return float(sum(collective_count(group) or 0 for group in groups) - before)
