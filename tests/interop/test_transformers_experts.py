"""A model of Transformers with experts on two views of a mesh gives the results of one process."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.interop.transformers_experts import _expert_sizes, distribute_experts

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install -e '.[interop]'"
)

WEIGHTS = (
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.mlp.experts.gate_up_proj",
    "model.layers.1.mlp.experts.down_proj",
    "model.layers.1.mlp.gate.weight",
)
# name to the sizes of the mesh, ep, the options, and the sizes of the expert view
CASES: dict[str, tuple[dict[str, int], int, dict[str, Any], dict[str, int]]] = {
    "ep is tp": ({"dp": 2, "tp": 2}, 2, {}, {"efsdp": 2, "ep": 2}),
    "ep is all": ({"dp": 2, "tp": 2}, 4, {}, {"efsdp": 1, "ep": 4}),
    "without tp": ({"dp": 4}, 2, {}, {"efsdp": 2, "ep": 2}),
    "replicas": ({"dp": 2, "fsdp": 2}, 2, {"data": "dp_replicate"}, {"efsdp": 1, "ep": 2}),
}


def make_model() -> Any:
    """Return a tiny model with random weights, equal on every rank."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True}
    rest = {"num_hidden_layers": 2, "vocab_size": 64, "max_position_embeddings": 32}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**small, **heads, **experts, **rest))


def tokens(seed: int) -> torch.Tensor:
    return torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(seed))


def groups_of_rank() -> set[dist.ProcessGroup]:
    return {g for g in dist.distributed_c10d._world.pg_map if g.size() > 1}


def train(case: str) -> dict[str, Any]:
    """Return what a step gives on the two views, and how many groups of several ranks are new."""
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    sizes, ep, options, _ = CASES[case]
    with meshkit.build_mesh(sizes, order=" ".join(sizes)) as mesh:
        before = groups_of_rank()
        model, views = distribute_experts(make_model(), mesh, ep=ep, **options)
        created = len(groups_of_rank() - before)
        at = views.dense.coordinate
        batch = tokens(at["dp_replicate"] * views.dense.size("fsdp") + at["fsdp"])
        model(batch, labels=batch).loss.backward()
        results = {
            "sizes": views.expert.layout.sizes,
            "created": created,
            "same": views.dense.group("dp_replicate") is views.expert.group("dp_replicate"),
            "gradients": [model.get_parameter(name).grad.full_tensor() for name in WEIGHTS],
            "shape": tuple(model.get_parameter(WEIGHTS[1]).to_local().shape),
            "norm": float(views.dense.grad_norm(model)),
            "norm of experts": float(views.expert.grad_norm(model)),
            "before": float(views.dense.clip_grad_norm(model, 0.01)),
            "after": float(views.dense.grad_norm(model)),
        }
        views.close()
        results["left"] = len(groups_of_rank() - before)
    return results


def train_all() -> list[dict[str, Any]]:
    """Run all cases in one job, because the import of Transformers takes most of its time."""
    return [train(case) for case in CASES]


@pytest.fixture(scope="module")
def on_four() -> list[list[dict[str, Any]]]:
    return meshkit.spawn(train_all, 4, timeout=400)


def one_process(parts: int) -> tuple[list[torch.Tensor], float]:
    """Return gradients of the mean loss over the parts, and the norm of all, of one process."""
    model = make_model()
    for seed in range(parts):
        (model(tokens(seed), labels=tokens(seed)).loss / parts).backward()
    squares = [float(p.grad.double().square().sum()) for p in model.parameters()]
    gradients = [model.get_parameter(name).grad for name in WEIGHTS]
    return gradients, sum(squares) ** 0.5


@pytest.mark.parametrize("case", CASES)
def test_gradients_and_one_norm_are_those_of_one_process(
    case: str, on_four: list[list[dict[str, Any]]]
) -> None:
    sizes, _, _, expert = CASES[case]
    gradients, norm = one_process(4 // sizes.get("tp", 1))
    for results in on_four:
        got = results[[*CASES].index(case)]
        assert expert.items() <= got["sizes"].items()
        for actual, expected in zip(got["gradients"], gradients, strict=True):
            assert float((actual - expected).abs().max()) < 1e-6
            assert float(expected.abs().max()) > 1e-4
        assert got["shape"][0] == 8 // expert["ep"] // expert["efsdp"]
        assert got["norm"] == pytest.approx(norm, rel=1e-5)
        assert got["before"] == got["norm"]
        assert got["norm of experts"] == pytest.approx(got["norm"], rel=1e-12)
        assert got["after"] == pytest.approx(0.01, rel=1e-3)
        assert got["same"]
        assert got["left"] == 0


def test_equal_groups_are_shared(on_four: list[list[dict[str, Any]]]) -> None:
    """If ep is tp, or all ranks, or the axis of fsdp, each group exists already."""
    for results in on_four:
        created = dict(zip(CASES, [got["created"] for got in results], strict=True))
        assert created == {"ep is tp": 0, "ep is all": 0, "without tp": 2, "replicas": 0}


def call_errors() -> list[str]:
    errors = []
    calls: list[tuple[dict[str, int], str, dict[str, Any]]] = [
        ({"dp": 2, "tp": 2}, "dp tp", {"ep": 3}),
        ({"dp": 2, "tp": 2}, "dp tp", {"ep": 1}),
        ({"dp": 2, "tp": 2}, "tp dp", {"ep": 4}),
        ({"dp": 4}, "dp", {"ep": 2, "fsdp_sise": 4}),
    ]
    for sizes, order, options in calls:
        with meshkit.build_mesh(sizes, order=order) as mesh:
            before = groups_of_rank()
            with pytest.raises(meshkit.SpecError) as error:
                distribute_experts(make_model(), mesh, **options)
            errors.append(str(error.value))
            assert groups_of_rank() == before
    return errors


def test_invalid_calls_are_errors_before_a_group_is_created() -> None:
    for errors in meshkit.spawn(call_errors, 4, timeout=200):
        odd, one, order, option = errors
        assert odd.startswith("distribute_experts(model, mesh, ep=3): ep is 3, and fsdp x tp is 2")
        assert odd.endswith("Fix: ep=2 or ep=4.")
        assert one.endswith("Fix: ep=2 or ep=4.")
        assert order.endswith("Fix: fsdp, then tp.")
        assert "Transformers rejects the config." in option


def test_the_expert_view_has_the_ranks_of_fsdp_and_tp_in_their_order() -> None:
    """efsdp x ep covers fsdp x tp at its place, so both are the same ranks in the same order."""
    for sizes, ep in (
        ({"pp": 1, "dp_replicate": 2, "fsdp": 4, "tp": 2}, 4),
        ({"pp": 1, "fsdp": 1, "dp_replicate": 2, "tp": 4}, 4),
        ({"pp": 1, "dp_replicate": 1, "tp": 1, "fsdp": 8}, 2),
    ):
        expert = meshkit.Layout.of(_expert_sizes(sizes, ep))
        dense = meshkit.Layout.of(sizes)
        assert expert.groups("efsdp", "ep").tolist() == dense.groups("fsdp", "tp").tolist()
        assert {*map(tuple, expert.groups("ep").tolist())} == {
            tuple(row[i : i + ep])
            for row in dense.groups("fsdp", "tp").tolist()
            for i in range(0, len(row), ep)
        }
