"""What the ranks of the tests of Transformers run."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.interop.transformers import distribute

WEIGHTS = ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight")

OPEN: list[meshkit.Mesh] = []  # DTensor of torch 2.13 confuses a mesh with an equal one, now closed


def groups_there() -> int:
    return len(dist.distributed_c10d._world.pg_map)


def config() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=32,
    )


def tokens(seed: int) -> torch.Tensor:
    return torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(seed))


def loaded(folder: str) -> Any:
    from transformers import LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return LlamaForCausalLM.from_pretrained(folder)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def alone(folder: str, parts: int) -> dict[str, Any]:
    """Logits, and the gradient of the mean loss over the parts, of one process."""
    model = loaded(folder)
    with torch.no_grad():
        logits = model(tokens(0)).logits
    for seed in range(parts):
        (model(tokens(seed), labels=tokens(seed)).loss / parts).backward()
    return {"logits": logits, "gradient": [model.get_parameter(n).grad for n in WEIGHTS]}


def trained(
    folder: str, sizes: dict[str, int], order: str | None, options: dict[str, Any]
) -> dict[str, Any]:
    """The same, of a model that is split; each data rank has a part of its own."""
    # torch 2.13 warns of what Transformers' modules return, and Transformers means it
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    mesh = meshkit.build_mesh(sizes, order=order)
    before = groups_there()
    model, view = distribute(loaded(folder), mesh, **options)
    made = groups_there() - before
    with torch.no_grad():
        logits = model(tokens(0)).logits
    part = view.coordinate["dp_replicate"] * view.layout.size("fsdp") + view.coordinate["fsdp"]
    model(tokens(part), labels=tokens(part)).loss.backward()
    found = {
        "logits": whole(logits),
        "gradient": [whole(model.get_parameter(name).grad) for name in WEIGHTS],
        "local": tuple(model.get_parameter(WEIGHTS[0]).to_local().shape),
        "made": made,
        "later": groups_there() - before,
    }
    OPEN.extend((view, mesh))
    return found


def closed() -> int:
    """How many groups are left when all is closed."""
    while OPEN:
        OPEN.pop().close()
    return groups_there()


def each(calls: list[tuple[Any, tuple[Any, ...]]]) -> list[Any]:
    """Several jobs in one, as the import of Transformers takes longest."""
    return [job(*args) for job, args in calls]


def staged(folder: str) -> dict[str, Any]:
    """Logits over two stages."""
    with meshkit.build_mesh(pp=2, dp=1) as mesh:
        model, view = distribute(loaded(folder), mesh)
        with view, torch.no_grad():
            return {"logits": model(tokens(0)).logits, "stage": view.coordinate["pp"]}


def refused(calls: list[tuple[dict[str, int], dict[str, Any]]]) -> list[str]:
    """What is told of calls on meshes that cannot be; and that nothing was made."""
    from transformers import LlamaForCausalLM

    told = []
    for sizes, given in calls:
        options = dict(given)
        build = {"ranks": options.pop("ranks", None)}
        of = torch.nn.Linear(2, 2) if options.pop("foreign", False) else LlamaForCausalLM(config())
        with meshkit.build_mesh(sizes, **build) as mesh:
            before = groups_there()
            try:
                distribute(of, mesh, **options)
            except meshkit.MeshkitError as error:
                told.append(f"{type(error).__name__}: {error}")
            assert groups_there() == before
            assert not hasattr(of, "_mesh_manager") or of._mesh_manager is None
    return told


def of_two_minds() -> str:
    """One rank asks for an option that Transformers does not have."""
    from transformers import LlamaForCausalLM

    with meshkit.build_mesh(dp=2) as mesh:
        options = {"fsdp_plan": "wrong"} if mesh.rank else {}
        try:
            distribute(LlamaForCausalLM(config()), mesh, **options)
        except meshkit.MeshkitError as error:
            return f"{type(error).__name__}: {error}"
    return ""


def without_plan() -> tuple[str, int]:
    """Transformers itself raises, after the view is made: what is told, and what stays."""
    from transformers import LlamaForCausalLM

    with meshkit.build_mesh(tp=2) as mesh:
        before = groups_there()
        model = LlamaForCausalLM(config())
        model.tp_plan = {}
        try:
            distribute(model, mesh)
        except ValueError as error:
            return str(error).split(". ")[0], groups_there() - before
    return "", 0
