"""Thirty small programs with a real bug each, and their right twins.

A miniature names the issue that tells of its bug, the axis over which the mistake is, and four
meshes. Several miniatures share a program, in which ``m.has("...")`` marks the wrong line. Tensors
move by plain collectives of torch, as in the programs that the issues are about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshkit import Mesh

Outputs = dict[str, Any]
TP = "dp=2", "tp=2", "dp=2 tp=2", "dp=2 tp=4"
DP = "tp=2", "dp=2", "dp=4", "dp=2 tp=2"
EP = "dp=2", "ep=2", "dp=2 ep=2", "ep=4"
CP = "dp=2", "cp=2", "dp=2 cp=2", "cp=4"
SP = "dp=2", "sp=2", "dp=2 sp=2", "sp=4"
PP = "dp=2", "pp=2", "pp=2 dp=2", "pp=2 tp=2"
DATA = "dp", "ep", "replicate", "shard"


@dataclass(frozen=True)
class Miniature:
    """A bug, the program that may have it, and where it shows."""

    name: str
    issue: str
    axes: tuple[str, ...]  # over which the mistake is
    program: Callable[[Case], Outputs]
    meshes: tuple[str, ...]

    @property
    def layout(self) -> dict[str, str]:
        """The sides of the gradients and outputs that are cut, for ``compare_meshes``."""
        sides = {f"grad {name}": side for name, (side, _) in WEIGHTS[self.program].items()}
        return {**sides, **OUTPUTS.get(self.program, {})}

    def step(self, mesh: Mesh, is_wrong: bool) -> Outputs:
        """Run the program once, and return its outputs and gradients."""
        case = Case(mesh, self.name, is_wrong, make_weights(mesh, self.program))
        outputs = self.program(case)
        return {**outputs, **{f"grad {name}": w.grad for name, w in case.weights.items()}}

    def train(self, mesh: Mesh, is_wrong: bool, steps: int = 50) -> Outputs:
        """Return the losses of some steps of Adam."""
        weights = make_weights(mesh, self.program)
        optimizer = torch.optim.Adam([*weights.values()], lr=0.01)
        losses = []
        for number in range(steps):
            optimizer.zero_grad()
            case = Case(mesh, self.name, is_wrong, weights, number)
            losses.append(float(self.program(case)["loss"].detach()))
            optimizer.step()
        return {"losses": torch.tensor(losses)}


@dataclass
class Case:
    """One step of a program on one rank."""

    mesh: Mesh
    name: str  # of the miniature
    is_wrong: bool
    weights: Mapping[str, Tensor]
    number: int = 0  # of the step
    generator: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self.generator.manual_seed(100 + self.number)

    def has(self, name: str) -> bool:
        """Return whether the program is wrong, and by this bug."""
        return self.is_wrong and self.name == name

    def size(self, *axes: str) -> int:
        """Return the product of the sizes of axes; an absent one has size 1."""
        count = 1
        for axis in axes:
            count *= self.mesh.layout.sizes.get(axis, 1)
        return count

    def index(self, axis: str) -> int:
        """Return the index of this rank along an axis, which may be absent."""
        return self.mesh.coordinate.get(axis, 0) if axis in self.mesh.layout.axes else 0

    def cut(self, x: Tensor, axes: tuple[str, ...] | str, dim: int = 0) -> Tensor:
        """Return this rank's part of a whole tensor, the outermost axis first."""
        for axis in (axes,) if isinstance(axes, str) else axes:
            x = x.chunk(self.size(axis), dim)[self.index(axis)]
        return x

    def random(self, *shape: int) -> Tensor:
        """Return numbers of the whole batch of this step, the same on every rank."""
        return torch.randn(*shape, generator=self.generator)

    def total(self, x: Tensor, *axes: str, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """Return the sum over axes, without a gradient."""
        x = x.detach().clone()
        for axis in axes:
            if self.size(axis) > 1:
                dist.all_reduce(x, op, group=self.mesh.group(axis))
        return x

    def copy(self, x: Tensor, axis: str, share: float = 1) -> Tensor:
        """Return a copy whose gradient is summed over an axis, times a share."""
        return Copy.apply(x, self, axis, share)  # type: ignore[no-any-return]

    def add(self, x: Tensor, axis: str) -> Tensor:
        """Return the sum over an axis, whose gradient is the same on each rank."""
        return Add.apply(x, self, axis)  # type: ignore[no-any-return]

    def reduce_gradients(self, *axes: str, share: float = 1) -> None:
        """Sum the gradients of all weights over axes, times a share."""
        for weight in self.weights.values():
            assert weight.grad is not None
            weight.grad = self.total(weight.grad, *axes) * share


class Copy(torch.autograd.Function):
    """The identity forwards, and a sum backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, case: Case, axis: str, share: float) -> Tensor:
        ctx.facts = case, axis, share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        case, axis, share = ctx.facts
        return case.total(grad, axis) * share, None, None, None


class Add(torch.autograd.Function):
    """A sum forwards, and the identity backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, case: Case, axis: str) -> Tensor:
        return case.total(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None, None


def make_weights(mesh: Mesh, program: Callable[[Case], Outputs]) -> dict[str, Tensor]:
    """Return this rank's parts of the weights of a program."""
    torch.manual_seed(0)
    case, weights = Case(mesh, "", False, {}), {}
    for name, (side, shape) in WEIGHTS[program].items():
        whole = torch.randn(*shape) / 2
        for dim, word in enumerate(side.split()):
            whole = case.cut(whole, tuple(word.split("/")[1:]), dim)
        weights[name] = whole.clone().requires_grad_()
    return weights


def mlp(m: Case) -> Outputs:
    """Two layers cut over tp, with a gate, a scale and a bias; samples are cut over data axes."""
    a, b, bias, scale, gate = (m.weights[name] for name in ("a", "b", "bias", "scale", "gate"))
    whole, target, kept = m.random(20, 4), m.random(20, 3), m.random(20) > -0.7
    mask = torch.rand(20, 3, generator=m.generator) > 0.2
    data = [axis for axis in DATA if axis in m.mesh.layout.axes]
    share = 1 / m.size(*data)
    x, y, kept, own = (m.cut(t, tuple(data)) for t in (whole, target, kept, mask))
    if m.has("dropout by rank"):
        own = mask[: len(x)]
    if m.has("last micro batch"):
        kept = kept & (torch.arange(len(x)) < len(x) // 4 * 4)
    scaled = x * (scale if m.has("norm weight") else m.copy(
        scale, "tp", 1 / m.size("tp") if m.has("mean of parts") else 1))  # fmt: skip
    used = gate if m.has("router") else m.copy(gate, "tp")
    hidden = torch.relu(scaled @ a.T) * m.cut(8 * (x @ used.T).softmax(1), "tp", 1)
    once = bias if m.has("bias") else 0
    out = (m.add(hidden @ b.T + once, "tp") + (bias - once)) * own
    squares = (out - y).square().sum(1) * kept
    count = m.total(kept.sum(), *data) * share
    if m.has("mean of means"):
        count = kept.sum()
    loss = squares.sum() / count
    loss.backward()
    if m.has("world size"):
        share /= m.size("tp")
    if m.has("divided twice"):
        share *= 1 / m.size("dp")
    m.reduce_gradients(*(axis for axis in data if not (m.has("replicas") and axis == "replicate")),
                       share=share)  # fmt: skip
    return {"loss": m.total(loss, *data) / m.size(*data)}


def moe(m: Case) -> Outputs:
    """Experts cut over ep, which see the tokens of all ranks along it."""
    experts = m.weights["experts"]
    tokens, target = m.cut(m.random(48, 4), "dp"), m.cut(m.random(48), "dp")
    routed = torch.arange(len(tokens)) % 4
    first, number = m.index("ep") * len(experts), len(experts)
    mine = (routed >= first) & (routed < first + number)
    chosen = experts[routed[mine] - first]
    squares = ((tokens[mine] * chosen).sum(1) - target[mine]).square()
    loss = squares.sum() / (len(tokens) / m.size("ep"))  # the mean over the tokens of a rank
    loss.backward()
    share = 1 / m.size("dp", "ep")
    if m.has("expert divisor"):
        share = 1 / m.size("dp")
    if m.has("expert divisor twice"):
        share /= m.size("ep")
    m.reduce_gradients("dp", *(["ep"] if m.has("experts mixed") else []), share=share)
    return {"loss": m.total(loss, "dp", "ep") / m.size("dp", "ep")}


def balance(m: Case) -> Outputs:
    """A router with a loss for equal loads, the product of two means over the global batch."""
    x = m.cut(m.random(24, 4), "dp")
    gates = (x @ m.weights["router"].T).softmax(1)
    loads = torch.nn.functional.one_hot(gates.argmax(1), 4).double().mean(0)
    if not m.has("balance by rank"):
        loads = m.total(loads, "dp") / m.size("dp")
    loss = (gates.mean(0) * loads).sum()
    loss.backward()
    m.reduce_gradients("dp", share=1 / m.size("dp"))
    return {"loss": m.total(loss, "dp") / m.size("dp")}


def sequence(m: Case) -> Outputs:
    """A layer that predicts the next token; sequences are cut over cp and sp."""
    tokens = m.random(4, 17, 4)
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    order = zigzag(16, m.size("cp")) if m.name == "zigzag labels" else torch.arange(16)
    x, y = (m.cut(m.cut(t[:, order], "dp"), ("cp", "sp"), 1) for t in (inputs, labels))
    if m.has("zigzag labels"):  # shifted on each rank, after the cut
        y = torch.cat([x[:, 1:], y[:, -1:]], 1)
    squares = (x @ m.weights["w"].T - y).square().sum()
    parts = m.size("cp", "sp")
    loss = squares / inputs.numel() * m.size("dp")
    loss = loss * (m.size("cp") if m.has("loss times cp") else 1)
    loss.backward()
    share = 1 / (m.size("dp") * (parts if m.has("mean over sp") else 1))
    m.reduce_gradients("dp", "cp", *([] if m.has("sp left out") else ["sp"]), share=share)
    return {"loss": m.total(squares, "dp", "cp", "sp") / inputs.numel()}


def zigzag(length: int, size: int) -> Tensor:
    """Return the order in which rank r holds blocks r and 2 * size - 1 - r."""
    blocks = torch.arange(length).chunk(2 * size)
    return torch.cat([torch.cat([blocks[r], blocks[-1 - r]]) for r in range(size)])


def scatter(m: Case) -> Outputs:
    """A layer whose output is cut over tp along the sequence."""
    x = m.cut(m.random(4, 8, 4), "dp")
    whole = x @ m.copy(m.weights["w"], "tp").T
    group = "dp" if m.has("wrong group") else "tp"
    own = whole.chunk(m.size("tp"), 1)[m.index(group) % m.size("tp")]
    loss = (own - 1).square().sum() / 32
    loss.backward()
    m.reduce_gradients("dp")
    return {"loss": m.total(loss, "dp", "tp"), "own": own}


def clip(m: Case) -> Outputs:
    """Gradients of layers on their stages, cut over tp or not, clipped by their norm."""
    weights, target = m.weights, float(m.random(1))
    squares = {name: (w - target).square().sum() for name, w in weights.items()}
    torch.stack([*squares.values()]).sum().backward()
    loss = m.total(m.total(squares["cut"], "tp") + squares["copied"].detach(), "pp")
    gradients = {name: w.grad for name, w in weights.items() if w.grad is not None}
    if m.name == "inf norm":
        largest = m.total(gradients["cut"].abs().max(), "tp", op=dist.ReduceOp.MAX)
        own = torch.maximum(largest, gradients["copied"].abs().max())
        op = dist.ReduceOp.SUM if m.is_wrong else dist.ReduceOp.MAX
        norm = m.total(own, "pp", op=op)
    else:
        cut, copied = (gradients[name].square().sum() for name in ("cut", "copied"))
        if m.has("copies in the norm") or m.has("squares of copies"):
            copied = m.total(copied, "tp")
        cut = cut if m.has("shards left out") else m.total(cut, "tp")
        total = copied if m.name == "squares of copies" else cut + copied
        norm = (total if m.has("norm of a stage") else m.total(total, "pp")).sqrt()
    for gradient in gradients.values():
        gradient /= norm
    return {"loss": loss, "norm": norm}


def vocabulary(m: Case) -> Outputs:
    """A cross entropy of logits that are cut over tp."""
    x, token = m.cut(m.random(8, 4), "dp"), m.cut(torch.arange(8), "dp")
    own = x @ m.weights["vocabulary"].T
    size, first = own.shape[1], own.shape[1] * m.index("tp")
    mine = (token >= first) & (token < first + size)
    picked = own[torch.arange(len(x)), (token - first).clamp(0, size - 1)] * mine
    sums = own.exp().sum(1)
    if m.has("gathered logits"):  # every rank has all logits, and adds them as if it had a part
        sums = m.add(sums, "tp")
    log_sum = m.add(sums, "tp").log()
    smooth = log_sum - (own.mean(1) if m.has("label smoothing") else m.add(own.sum(1), "tp") / 8)
    loss = (0.9 * (log_sum - m.add(picked, "tp")) + 0.1 * smooth).sum() / 8
    loss.backward()
    m.reduce_gradients("dp")
    return {"loss": m.total(loss, "dp")}


def attention(m: Case) -> Outputs:
    """A fused projection of queries, keys and values, of 4 heads that are cut over tp."""
    fused = m.weights["fused"]
    cut = m.cut(fused, "tp") if m.has("fused rows") else m.cut(fused.view(3, 4, 4), "tp", 1)
    cut = cut.reshape(3, 4 // m.size("tp"), 4)
    projected = torch.einsum("tc,phc->tph", m.cut(m.random(8, 4), "dp"), cut)
    q, k, v = projected.unbind(1)
    loss = ((q * k).tanh() * v - 1).square().sum() / 32
    loss.backward()
    m.reduce_gradients("dp", "tp")
    return {"loss": m.total(loss, "dp", "tp"), "heads": cut.detach()}


def gather(m: Case) -> Outputs:
    """The output of a fused projection, gathered over tp."""
    fused, x = m.weights["fused"], m.random(8, 4)
    own = m.cut(fused.view(3, 4, 4), "tp", 1).reshape(-1, 4)
    parts = [torch.zeros(8, len(own)) for _ in range(m.size("tp"))]
    for index, part in enumerate(parts):
        part += (x @ own.detach().T) * (index == m.index("tp"))
    whole = [m.total(part, "tp") for part in parts]
    output = torch.cat(whole, 1)
    if not m.has("fused gather"):
        output = torch.cat([part.view(8, 3, -1) for part in whole], 2).flatten(1)
    loss = ((x @ fused.T) - 1).square().mean()
    loss.backward()
    return {"loss": loss, "output": output}


def shards(m: Case) -> Outputs:
    """The whole weight of a layer that is cut over tp, and each part over dp, as FSDP2 does."""
    weight = m.weights["w"]
    part = m.cut(weight, ("tp", "dp")).detach()
    place = torch.zeros(m.size("dp"), m.size("tp"), *part.shape)
    place[m.index("dp"), m.index("tp")] = part
    every = m.total(place, "dp", "tp")
    whole = every.flatten(0, 2) if m.has("order of shards") else every.transpose(0, 1).flatten(0, 2)
    loss = (weight - 1).square().sum()
    loss.backward()
    return {"loss": loss, "whole": whole}


def tied(m: Case) -> Outputs:
    """An embedding on the first stage, which is the output layer of the last one."""
    words, tokens = m.weights["words"], m.cut(torch.arange(8), "dp")
    last = m.size("pp") - 1
    first_rank, last_rank = (int(m.mesh.layout.rank(**{**m.mesh.coordinate, **stage}))
                             for stage in stages(m, last))  # fmt: skip
    embedded = words[tokens]
    hidden = embedded.detach().clone()
    if last and m.index("pp") == 0:
        dist.send(hidden, last_rank)
    if last and m.index("pp") == last:
        dist.recv(hidden, first_rank)
    hidden.requires_grad_()
    loss = torch.nn.functional.cross_entropy(hidden @ words.T, tokens, reduction="sum") / 8
    if m.index("pp") == last:
        loss.backward()
        assert hidden.grad is not None
    grad = torch.zeros_like(hidden) if hidden.grad is None else hidden.grad
    if last and m.index("pp") == last:
        dist.send(grad, first_rank)
    if last and m.index("pp") == 0:
        dist.recv(grad, last_rank)
    if m.index("pp") == 0:
        embedded.backward(grad)
    m.reduce_gradients("dp", *([] if m.has("tied weights") else ["pp"]))
    return {"loss": m.total(loss * (m.index("pp") == last), "dp", "pp")}


def stages(m: Case, last: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the coordinates of the first and the last stage."""
    return ({"pp": 0}, {"pp": last}) if last else ({}, {})


WEIGHTS: dict[Callable[[Case], Outputs], dict[str, tuple[str, tuple[int, ...]]]] = {
    mlp: {"a": ("o/tp i", (8, 4)), "b": ("o i/tp", (3, 8)), "bias": ("o", (3,)),
          "scale": ("i", (4,)), "gate": ("o i", (8, 4))},
    moe: {"experts": ("e/ep i", (4, 4))},
    balance: {"router": ("e i", (4, 4))},
    sequence: {"w": ("o i", (4, 4))},
    scatter: {"w": ("o i", (4, 4))},
    clip: {"cut": ("l/pp o/tp i", (4, 4, 3)), "copied": ("l/pp i", (4, 3))},
    vocabulary: {"vocabulary": ("v/tp i", (8, 4))},
    attention: {"fused": ("o i", (12, 4))},
    gather: {"fused": ("o i", (12, 4))},
    shards: {"w": ("o i", (8, 4))},
    tied: {"words": ("v i", (8, 4))},
}  # fmt: skip
OUTPUTS = {scatter: {"own": "b/dp s/tp i"}, attention: {"heads": "p h/tp i"}}
MEGATRON = "NVIDIA/Megatron-LM"
MINIATURES = [
    Miniature("router", "pytorch/torchtitan#2387", ("tp",), mlp, TP),
    Miniature("expert divisor", f"{MEGATRON}#5956", ("ep",), moe, EP),
    Miniature("copies in the norm", "NVIDIA-NeMo/RL#3788", ("tp",), clip, TP),
    Miniature("wrong group", f"{MEGATRON}#7452", ("tp",), scatter, TP),
    Miniature("zigzag labels", "verl-project/verl#1332", ("cp",), sequence, CP),
    Miniature("fused rows", "NVIDIA-NeMo/Automodel#1324", ("tp",), attention, TP),
    Miniature("last micro batch", "roboflow/rf-detr#916", ("dp",), mlp, DP),
    Miniature("sp left out", "areal-project/AReaL#313", ("sp",), sequence, SP),
    Miniature("mean of means", "huggingface/transformers#34191", ("dp",), mlp, DP),
    Miniature("bias", "huggingface/text-generation-inference#1036", ("tp",), mlp, TP),
    Miniature("tied weights", "uw-syfi/piper#13", ("pp",), tied, PP),
    Miniature("mean over sp", "EleutherAI/gpt-neox#1259", ("sp",), sequence, SP),
    Miniature("dropout by rank", "tenstorrent/tt-metal#55947", ("dp",), mlp, DP),
    Miniature("shards left out", f"{MEGATRON}#7452", ("tp",), clip, TP),
    Miniature("squares of copies", "ROCm/TransformerEngine#715", ("tp",), clip, TP),
    Miniature("mean of parts", "NVIDIA-NeMo/Automodel#3822", ("tp",), mlp, TP),
    Miniature("norm of a stage", "pytorch/torchtitan#596", ("pp",), clip, PP),
    Miniature("inf norm", "pytorch/torchtitan#649", ("pp",), clip, PP),
    Miniature("experts mixed", f"{MEGATRON}#6450", ("ep",), moe, EP),
    Miniature("divided twice", "ByteDance-Seed/VeOmni#185", ("dp",), mlp, DP),
    Miniature("world size", "meta-pytorch/torchtune#2420", ("tp",), mlp, TP),
    Miniature("expert divisor twice", "deepspeedai/DeepSpeed#5259", ("ep",), moe, EP),
    Miniature("balance by rank", "pytorch/torchtitan#4772", ("dp",), balance, DP),
    Miniature("norm weight", f"{MEGATRON}#1446", ("tp",), mlp, TP),
    Miniature("loss times cp", f"{MEGATRON}#906", ("cp",), sequence, CP),
    Miniature("gathered logits", f"{MEGATRON}#7452", ("tp",), vocabulary, TP),
    Miniature("label smoothing", f"{MEGATRON}#737", ("tp",), vocabulary, TP),
    Miniature("fused gather", "ndif-team/nnsight#719", ("tp",), gather, TP),
    Miniature("order of shards", "pytorch/pytorch#129206", ("dp", "tp"), shards,
              ("dp=2", "tp=2", "dp=2 tp=2", "dp=2 tp=4")),
    Miniature("replicas", f"{MEGATRON}#5743", ("replicate",), mlp,
              ("shard=2", "replicate=2", "replicate=2 shard=2", "replicate=4")),
]  # fmt: skip
