"""A model of Transformers on a mesh gives the results of one process."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.interop.transformers import distribute, fold_context
from tests.interop.run_example import run_example

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install -e '.[interop]'"
)
LIBRARY = ["transformers.models.llama.modeling_llama", "transformers.distributed.utils"]
EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = EXAMPLES / "with_transformers.py"


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a tiny saved Llama with random weights."""
    from transformers import LlamaForCausalLM

    path = str(tmp_path_factory.mktemp("llama"))
    torch.manual_seed(0)
    LlamaForCausalLM(config()).save_pretrained(path)
    return path


def max_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).abs().max())


CASES: dict[str, tuple[dict[str, int], str | None, dict[str, Any]]] = {
    "fsdp tp": ({"dp": 2, "tp": 2}, None, {}),
    "tp outside": ({"dp": 2, "tp": 2}, "tp dp", {}),
    "replicate tp": ({"dp": 2, "tp": 2}, None, {"data": "dp_replicate"}),
    "hsdp": ({"dp": 2, "fsdp": 2}, "dp fsdp", {"data": "dp_replicate"}),
    "cp": ({"dp": 2, "cp": 2}, None, {}),
}
PARTS = {"fsdp tp": (2, (8, 32)), "tp outside": (2, (8, 32)), "replicate tp": (2, (16, 32))}
PARTS |= {
    "hsdp": (4, (16, 32)),
    "cp": (4, (8, 32)),
    "tp": (1, (16, 32)),
}  # number of data ranks, and the shape of a local weight
WEIGHTS = ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight")


def num_groups() -> int:
    return len(dist.distributed_c10d._world.pg_map)


def close_all() -> int:
    """Close all meshes and return the number of groups that are left."""
    while OPEN:
        OPEN.pop().close()
    return num_groups()


OPEN: list[
    meshkit.Mesh
] = []  # open until the end: DTensor of torch 2.13 confuses a mesh with a closed equal one


def tokens(seed: int) -> torch.Tensor:
    return torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(seed))


def load_model(folder: str) -> Any:
    from transformers import LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return LlamaForCausalLM.from_pretrained(folder)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def run_all(calls: list[tuple[Any, tuple[Any, ...]]]) -> list[Any]:
    """Run several jobs in one, because the import of Transformers takes most of its time."""
    return [job(*args) for job, args in calls]


def train_split(
    folder: str, sizes: dict[str, int], order: str | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Return logits and gradients of a split model; each data rank has a part of its own."""
    # torch 2.13 warns about views that modules of Transformers return on purpose
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    mesh = meshkit.build_mesh(sizes, order=order)
    before = num_groups()
    model, view = distribute(load_model(folder), mesh, **options)
    created = num_groups() - before
    with torch.no_grad():
        logits = model(tokens(0)).logits
    part = view.coordinate["dp_replicate"] * view.layout.size("fsdp") + view.coordinate["fsdp"]
    model(tokens(part), labels=tokens(part)).loss.backward()
    results = {
        "logits": whole(logits),
        "gradient": [whole(model.get_parameter(name).grad) for name in WEIGHTS],
        "local": tuple(model.get_parameter(WEIGHTS[0]).to_local().shape),
        "created": created,
        "later": num_groups() - before,
    }
    OPEN.extend((view, mesh))
    return results


@pytest.fixture(scope="module")
def on_four(folder: str) -> list[list[Any]]:
    """Return the results of each case, by rank."""
    calls = [(train_split, (folder, *case)) for case in CASES.values()]
    return meshkit.spawn(run_all, 4, ([*calls, (close_all, ())],), timeout=200)


def different_options() -> str:
    """Pass an option that Transformers does not have on one rank."""
    from transformers import LlamaForCausalLM

    with meshkit.build_mesh(dp=2) as mesh:
        options = {"fsdp_plan": "wrong"} if mesh.rank else {}
        try:
            distribute(LlamaForCausalLM(config()), mesh, **options)
        except meshkit.MeshkitError as error:
            return f"{type(error).__name__}: {error}"
    return ""


def without_plan() -> tuple[str, int]:
    """Return the error that Transformers raises after the view exists, and the groups left."""
    from transformers import LlamaForCausalLM

    with meshkit.build_mesh(tp=2) as mesh:
        before = num_groups()
        model = LlamaForCausalLM(config())
        model.tp_plan = {}
        try:
            distribute(model, mesh)
        except ValueError as error:
            return str(error).split(". ")[0], num_groups() - before
    return "", 0


def run_stages(folder: str) -> dict[str, Any]:
    """Return the logits over two stages."""
    with meshkit.build_mesh(pp=2, dp=1) as mesh:
        model, view = distribute(load_model(folder), mesh)
        with view, torch.no_grad():
            return {"logits": model(tokens(0)).logits, "stage": view.coordinate["pp"]}


@pytest.fixture(scope="module")
def on_two(folder: str) -> list[list[Any]]:
    """Return the results by rank, in one job, which shows that failures leave it usable."""
    tp = (folder, {"dp": 1, "sp": 1, "tp": 2}, None, {})
    calls = [(different_options, ()), (without_plan, ()), (train_split, tp)]
    calls += [(run_stages, (folder,)), (close_all, ())]
    return meshkit.spawn(run_all, 2, (calls,), timeout=200)


def one_process(folder: str, parts: int) -> dict[str, Any]:
    """Return the logits and the gradient of the mean loss over the parts, of one process."""
    model = load_model(folder)
    with torch.no_grad():
        logits = model(tokens(0)).logits
    for seed in range(parts):
        (model(tokens(seed), labels=tokens(seed)).loss / parts).backward()
    return {"logits": logits, "gradient": [model.get_parameter(n).grad for n in WEIGHTS]}


def check(case: str, folder: str, got: dict[str, Any]) -> None:
    parts, local = PARTS[case]
    want = one_process(folder, parts)
    assert max_difference(got["logits"], want["logits"]) < 1e-6
    for actual, expected in zip(got["gradient"], want["gradient"], strict=True):
        assert max_difference(actual, expected) < 1e-7 < float(expected.abs().max())
    assert got["local"] == local
    # each mesh has a group of one rank for the axes it lacks
    assert got["created"] == got["later"] == 0


@pytest.mark.parametrize("case", CASES)
def test_logits_and_a_whole_gradient_are_those_of_one_process(
    case: str, folder: str, on_four: list[list[Any]]
) -> None:
    for results in on_four:
        check(case, folder, results[[*CASES].index(case)])


def test_cp_is_a_part_of_the_data_axis_beside_it() -> None:
    layout = meshkit.Layout(dp_replicate=2, fsdp=2, cp=2, tp=2)
    assert fold_context(layout) == meshkit.Layout(dp_replicate=2, fsdp=4, tp=2)
    assert fold_context(meshkit.Layout(cp=2, dp=2)) == meshkit.Layout(dp=4)
    with pytest.raises(meshkit.SpecError, match="cp is not next to a data axis") as error:
        fold_context(meshkit.Layout(dp=2, tp=2, cp=2))
    assert str(error.value).endswith("Fix: build_mesh(..., order='dp cp tp').")


def test_tp_alone_creates_no_group(folder: str, on_two: list[list[Any]]) -> None:
    for results in on_two:
        check("tp", folder, results[2])


def test_closed_views_and_meshes_leave_the_default_group(
    on_four: list[list[Any]], on_two: list[list[Any]]
) -> None:
    assert [results[-1] for results in (*on_four, *on_two)] == [1] * 6


def test_two_stages_give_the_logits_of_one_process(folder: str, on_two: list[list[Any]]) -> None:
    want = one_process(folder, 1)["logits"]
    for rank, results in enumerate(on_two):
        assert results[3]["stage"] == rank
        assert max_difference(results[3]["logits"], want) < 1e-6


def call_errors(calls: list[tuple[dict[str, int], dict[str, Any]]]) -> list[str]:
    """Return the errors of invalid calls, and check that no group was created."""
    from transformers import LlamaForCausalLM

    errors = []
    for sizes, arguments in calls:
        options = dict(arguments)
        build = {"ranks": options.pop("ranks", None)}
        model = (
            torch.nn.Linear(2, 2) if options.pop("foreign", False) else LlamaForCausalLM(config())
        )
        with meshkit.build_mesh(sizes, **build) as mesh:
            before = num_groups()
            try:
                distribute(model, mesh, **options)
            except meshkit.MeshkitError as error:
                errors.append(f"{type(error).__name__}: {error}")
            assert num_groups() == before
            assert not hasattr(model, "_mesh_manager") or model._mesh_manager is None
    return errors


def test_invalid_calls_are_errors_before_a_group_is_created() -> None:
    calls: list[tuple[dict[str, int], dict[str, Any]]] = [
        ({"dp": 1, "sp": 2, "tp": 2}, {}),
        ({"dp": 2, "tp": 2}, {"data": "ddp"}),
        ({"dp": 2, "fsdp": 2}, {}),
        ({"pp": 2, "dp": 2}, {}),
        ({"dp": 2}, {"ranks": [0, 1]}),
        ({"dp": 4}, {"foreign": True}),
        ({"dp": 4}, {"fsdp_sise": 4}),
        ({"dp": 2, "tp": 2}, {"ep_size": 4}),
    ]
    beginnings = [
        "Transformers has no axis sp.\n  Its axes are pp, dp_replicate, fsdp, tp; sp is 2.\n",
        "data is 'ddp'.\n",
        "dp would get the name fsdp, which another axis has.\n  dp is 2, fsdp is 2.\n",
        "Transformers rejects the config.\n  Combining FSDP with pipeline parallelism",
        "the mesh holds 2 ranks of 4.\n",
        "the model is a Linear, not one of Transformers.\n",
        "Transformers rejects the config.\n  DistributedConfig.__init__() got an unexpected",
        "experts need groups that a view does not have.\n",
    ]
    for errors in meshkit.spawn(call_errors, 4, (calls,), timeout=120):
        assert len(errors) == len(beginnings)
        for error, beginning in zip(errors, beginnings, strict=True):
            kind, _, summary = error.partition(": distribute(model, mesh")
            assert kind == "SpecError"
            assert summary.partition("): ")[2].startswith(beginning)


def test_an_error_of_one_rank_is_raised_on_the_other(on_two: list[list[Any]]) -> None:
    right, wrong = (results[0] for results in on_two)
    assert wrong.startswith("SpecError: distribute(model, mesh, fsdp_plan='wrong')")
    assert right.startswith("DisagreementError: ")
    assert "`fsdp_plan` must be a dictionary or None." in right


def test_the_view_is_closed_if_transformers_raises(on_two: list[list[Any]]) -> None:
    for _, (error, left), *_ in on_two:
        assert error.startswith(
            "`tp_size=2` was requested, but `LlamaForCausalLM` has no `tp_plan`"
        )
        assert left == 0


def test_the_example_trains() -> None:
    output, *others = meshkit.spawn(run_example, 4, (str(EXAMPLE), {}), timeout=120)
    assert others == [""] * 3
    first, losses, *_ = output.splitlines()
    assert first.startswith("Mesh(pp=1, dp_replicate=1, fsdp=2, tp=2; rank 0: pp=0")
    values = [float(word) for word in losses.split()[1:]]
    assert values == sorted(values, reverse=True)
    assert len(values) == 3


def test_the_trainer_has_the_losses_of_one_process() -> None:
    """The page shows these losses."""
    script = str(EXAMPLES / "transformers_trainer.py")
    for ranks in (1, 2):
        output = meshkit.spawn(run_example, ranks, (script, {}), timeout=120)[0]
        assert output.splitlines()[-1].endswith("losses 4.1717 4.1672 4.1737 4.1652")


def test_gradients_along_cp_are_those_of_one_process() -> None:
    script = str(EXAMPLES / "transformers_attention.py")
    output = meshkit.spawn(run_example, 4, (script, {}), timeout=120)[0]
    assert output.startswith("Mesh(dp=1, cp=4;")
    assert float(output.split()[-1]) < 1e-15


def test_a_missing_transformers_is_an_error_with_the_command_to_install_it() -> None:
    code = """
import sys
sys.modules["transformers"] = None
from meshkit.interop.transformers import distribute
distribute(None, None)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert process.stderr.splitlines()[-1] == (
        "ImportError: meshkit.interop.transformers needs transformers 5.23:"
        " pip install transformers"
    )
