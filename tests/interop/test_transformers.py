"""A real model of Transformers on a mesh, beside one process."""

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
from meshkit.interop.transformers import distribute
from tests.interop.run_example import run_example

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install -e '.[interop]'"
)
LIBRARY = ["transformers.models.llama.modeling_llama", "transformers.distributed.utils"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "with_transformers.py"


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
    """A tiny Llama with random weights, saved."""
    from transformers import LlamaForCausalLM

    path = str(tmp_path_factory.mktemp("llama"))
    torch.manual_seed(0)
    LlamaForCausalLM(config()).save_pretrained(path)
    return path


def largest(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


CASES: dict[str, tuple[dict[str, int], str | None, dict[str, Any]]] = {
    "fsdp tp": ({"dp": 2, "tp": 2}, None, {}),
    "tp outside": ({"dp": 2, "tp": 2}, "tp dp", {}),
    "replicate tp": ({"dp": 2, "tp": 2}, None, {"data": "dp_replicate"}),
    "hsdp": ({"dp": 2, "fsdp": 2}, "dp fsdp", {"data": "dp_replicate"}),
}
PARTS = {"fsdp tp": (2, (8, 32)), "tp outside": (2, (8, 32)), "replicate tp": (2, (16, 32))}
PARTS |= {
    "hsdp": (4, (16, 32)),
    "tp": (1, (16, 32)),
}  # data ranks, and this rank's rows of a weight
WEIGHTS = ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight")


def groups_there() -> int:
    return len(dist.distributed_c10d._world.pg_map)


def closed() -> int:
    """How many groups are left when all is closed."""
    while OPEN:
        OPEN.pop().close()
    return groups_there()


OPEN: list[meshkit.Mesh] = []  # DTensor of torch 2.13 confuses a mesh with an equal one, now closed


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


def each(calls: list[tuple[Any, tuple[Any, ...]]]) -> list[Any]:
    """Several jobs in one, as the import of Transformers takes longest."""
    return [job(*args) for job, args in calls]


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


@pytest.fixture(scope="module")
def on_four(folder: str) -> list[list[Any]]:
    """By rank, what each case gives."""
    calls = [(trained, (folder, *case)) for case in CASES.values()]
    return meshkit.spawn(each, 4, ([*calls, (closed, ())],), timeout=200)


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


def staged(folder: str) -> dict[str, Any]:
    """Logits over two stages."""
    with meshkit.build_mesh(pp=2, dp=1) as mesh:
        model, view = distribute(loaded(folder), mesh)
        with view, torch.no_grad():
            return {"logits": model(tokens(0)).logits, "stage": view.coordinate["pp"]}


@pytest.fixture(scope="module")
def on_two(folder: str) -> list[list[Any]]:
    """By rank, in one job, so that each failure is seen to leave the job as it was."""
    tp = (folder, {"dp": 1, "tp": 2, "sp": 1}, None, {})
    calls = [(of_two_minds, ()), (without_plan, ()), (trained, tp)]
    calls += [(staged, (folder,)), (closed, ())]
    return meshkit.spawn(each, 2, (calls,), timeout=200)


def alone(folder: str, parts: int) -> dict[str, Any]:
    """Logits, and the gradient of the mean loss over the parts, of one process."""
    model = loaded(folder)
    with torch.no_grad():
        logits = model(tokens(0)).logits
    for seed in range(parts):
        (model(tokens(seed), labels=tokens(seed)).loss / parts).backward()
    return {"logits": logits, "gradient": [model.get_parameter(n).grad for n in WEIGHTS]}


def check(case: str, folder: str, got: dict[str, Any]) -> None:
    parts, local = PARTS[case]
    want = alone(folder, parts)
    assert largest(got["logits"], want["logits"]) < 1e-6
    for mine, whole in zip(got["gradient"], want["gradient"], strict=True):
        assert largest(mine, whole) < 1e-7 < float(whole.abs().max())
    assert got["local"] == local
    # the view needs a group of one, where the mesh has none; Transformers makes no group
    assert got["made"] == got["later"] == (0 if case == "tp" else 1)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_a_whole_gradient_are_those_of_one_process(
    case: str, folder: str, on_four: list[list[Any]]
) -> None:
    for found in on_four:
        check(case, folder, found[[*CASES].index(case)])


def test_tp_alone_makes_no_group(folder: str, on_two: list[list[Any]]) -> None:
    for found in on_two:
        check("tp", folder, found[2])


def test_closed_views_and_meshes_leave_the_default_group(
    on_four: list[list[Any]], on_two: list[list[Any]]
) -> None:
    assert [found[-1] for found in (*on_four, *on_two)] == [1] * 6


def test_two_stages_give_the_logits_of_one_process(folder: str, on_two: list[list[Any]]) -> None:
    want = alone(folder, 1)["logits"]
    for rank, found in enumerate(on_two):
        assert found[3]["stage"] == rank
        assert largest(found[3]["logits"], want) < 1e-6


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


def test_what_transformers_cannot_express_is_refused_before_a_group_is_made() -> None:
    calls: list[tuple[dict[str, int], dict[str, Any]]] = [
        ({"dp": 1, "sp": 2, "tp": 2}, {}),
        ({"dp": 2, "tp": 2}, {"data": "ddp"}),
        ({"dp": 2, "pp": 2}, {}),
        ({"dp": 2}, {"ranks": [0, 1]}),
        ({"dp": 4}, {"foreign": True}),
        ({"dp": 4}, {"fsdp_sise": 4}),
        ({"dp": 2, "tp": 2}, {"ep_size": 4}),
    ]
    for told in meshkit.spawn(refused, 4, (calls,), timeout=120):
        assert told == [
            "SpecError: distribute(model, mesh, data='fsdp'): Transformers"
            " cannot split over sp.\n"
            "  Its axes are pp, dp_replicate, fsdp, tp; sp is 2.\n"
            "  Fix: build_mesh(dp=2, tp=2), or axes that it has.",
            "SpecError: distribute(model, mesh, data='ddp'): dp cannot be 'ddp'.\n"
            "  Fix: data='fsdp' or data='dp_replicate'.",
            "SpecError: distribute(model, mesh, data='fsdp'): Transformers refuses.\n"
            "  Combining FSDP with pipeline parallelism is not supported yet. Use"
            " DistributedConfig(tp_size=N, fsdp_size=M), or combine TP and PP.\n"
            "  Fix: what Transformers asks for.",
            "SpecError: distribute(model, mesh, data='fsdp'): the mesh holds 2 ranks of 4.\n"
            "  Transformers waits for all ranks of the world, and saves on its rank 0.\n"
            "  Fix: build_mesh over all 4 ranks.",
            "SpecError: distribute(model, mesh, data='fsdp'): the model is a Linear, none of"
            " Transformers'.\n"
            "  Fix: AutoModelForCausalLM.from_pretrained(path), say.",
            "SpecError: distribute(model, mesh, data='fsdp', fsdp_sise=4): Transformers refuses.\n"
            "  DistributedConfig.__init__() got an unexpected keyword argument 'fsdp_sise'\n"
            "  Fix: what Transformers asks for.",
            "SpecError: distribute(model, mesh, data='fsdp', ep_size=4): experts need groups"
            " that no view has.\n"
            "  Fix: distribute(model, mesh, data='fsdp').",
        ]


def test_a_rank_that_is_refused_alone_tells_the_other(on_two: list[list[Any]]) -> None:
    right, wrong = (found[0] for found in on_two)
    assert wrong.startswith("SpecError: distribute(model, mesh, data='fsdp', fsdp_plan='wrong')")
    assert right.startswith("DisagreementError: ")
    assert "`fsdp_plan` must be a dictionary or None." in right


def test_where_transformers_itself_raises_the_view_is_closed(on_two: list[list[Any]]) -> None:
    for _, (told, left), *_ in on_two:
        assert told.startswith("`tp_size=2` was requested, but `LlamaForCausalLM` has no `tp_plan`")
        assert left == 0


def test_the_example_trains() -> None:
    said, *others = meshkit.spawn(run_example, 4, (str(EXAMPLE), {}), timeout=120)
    assert others == [""] * 3
    first, losses, *_ = said.splitlines()
    assert first.startswith("Mesh(pp=1, dp_replicate=1, fsdp=2, tp=2; rank 0: pp=0")
    values = [float(word) for word in losses.split()[1:]]
    assert values == sorted(values, reverse=True)
    assert len(values) == 3


def test_without_transformers_it_says_what_to_install() -> None:
    code = """
import sys
sys.modules["transformers"] = None
from meshkit.interop.transformers import distribute
distribute(None, None)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: meshkit.interop.transformers needs transformers 5.23:"
        " pip install 'meshkit[interop]'"
    )
