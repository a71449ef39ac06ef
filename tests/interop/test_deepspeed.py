"""DeepSpeed on a mesh: ZeRO trains as one process does, and an mpu has the groups of the mesh."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.interop.deepspeed import Mpu, check_engine, config
from tests.interop.run_example import run_example

LIBRARY = ["deepspeed"]
# pip installs ninja into a folder that may not be in PATH
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
EXAMPLE = Path(__file__).parents[2] / "examples" / "with_deepspeed.py"
COMPILED = 1200  # seconds of a job, of which the first compiles an extension beside other tests


def missing() -> list[str]:
    """Return what is missing: on a CPU DeepSpeed compiles its shared memory collectives."""
    absent = [] if importlib.util.find_spec("deepspeed") else ["deepspeed"]
    return absent + [tool for tool in ("g++", "ninja") if shutil.which(tool, path=PATH) is None]


needs_deepspeed = pytest.mark.skipif(
    bool(missing()),
    reason=f"not installed: {', '.join(missing())}; pip install -e '.[interop]', and g++",
)


@pytest.fixture(scope="module")
def environ(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Return variables for a shared build folder, without the lock of a killed run."""
    cache = getattr(pytestconfig, "cache", None)  # None with -p no:cacheprovider
    made = tmp_path_factory.mktemp("torch_extensions")
    folder = made if cache is None else cache.mkdir("torch_extensions")
    for lock in folder.glob("**/lock"):
        lock.unlink()
    return {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(folder), "PATH": PATH}


@pytest.fixture(scope="module", autouse=True)
def _on_the_cpu() -> Iterator[None]:
    """Select the CPU before the forkserver imports DeepSpeed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        yield


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Turn warnings into errors, except those of DeepSpeed's own calls to torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        warnings.filterwarnings(
            "ignore", r"`torch.distributed.(all_gather_into|reduce_scatter)_", FutureWarning
        )
        yield


class Trained(NamedTuple):
    """The result of training on a rank."""

    losses: list[float]  # of its own samples, by step
    created: int  # the groups that DeepSpeed created
    zero: list[int]  # the ranks over which the optimizer is split
    batch: int  # the global batch in the view of DeepSpeed


STEPS = 4


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))


def sample(step: int, part: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + part))


def loss_of(network: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (network(x) - x).square().mean()
    return loss


def train(mesh: meshkit.Mesh, stage: int, share: bool) -> Trained:
    import deepspeed

    network = model()
    settings = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # the default of DeepSpeed is 1
    }
    before = len(dist.distributed_c10d._world.pg_map)
    engine, optimizer, *_ = deepspeed.initialize(
        model=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        mpu=Mpu(mesh),
        config=settings,
    )
    sp, losses = mesh.layout.sizes.get("sp", 1), []
    for step in range(STEPS):
        loss = loss_of(engine, sample(step, part_of(mesh.layout, mesh.rank)))
        engine.backward(loss / sp if share else loss)
        engine.step()
        losses.append(float(loss.detach()))
    created = len(dist.distributed_c10d._world.pg_map) - before
    group = dist.get_process_group_ranks(optimizer.dp_process_group)
    return Trained(losses, created, group, engine.train_batch_size())


def train_cases(
    environ: dict[str, str], sizes: dict[str, int], cases: list[tuple[int, bool]]
) -> list[Trained]:
    """Train under ZeRO on a mesh.

    Args:
        environ: variables that select the device, the build folder and the compiler.
        sizes: the sizes of the mesh.
        cases: the stage of ZeRO, and whether the loss is this rank's share of the mean over the
            sequence instead of the mean over its own part.
    """
    os.environ.update(environ)
    with strict(), meshkit.build_mesh(sizes) as mesh:
        return [train(mesh, stage, share) for stage, share in cases]


def train_on_one_process(parts: int, lr: float = 0.1) -> list[list[float]]:
    """Return the loss of each part in each step, on one process."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=lr)
    by_step = []
    for step in range(STEPS):
        losses = [loss_of(network, sample(step, part)) for part in range(parts)]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        by_step.append([float(loss.detach()) for loss in losses])
    return by_step


def part_of(layout: meshkit.Layout, rank: int) -> int:
    """Return the part of a step that a rank reads."""
    coordinate = {"sp": 0, **layout.coordinate(rank)}
    return coordinate["dp"] * layout.sizes.get("sp", 1) + coordinate["sp"]


@needs_deepspeed
@pytest.mark.parametrize(
    ("sizes", "stages"), [({"dp": 2, "tp": 2}, [1, 2, 3]), ({"dp": 2, "sp": 2, "tp": 1}, [1, 2])]
)
def test_zero_trains_as_one_process_does(
    environ: dict[str, str], sizes: dict[str, int], stages: list[int]
) -> None:
    """A mean over the local part, the last case, trains with sp times the gradient."""
    layout, sp = meshkit.Layout(**sizes), sizes.get("sp", 1)
    cases = [*((stage, True) for stage in stages), (1, False)]
    by_rank = meshkit.spawn(train_cases, 4, (environ, sizes, cases), timeout=COMPILED)
    rates = [*(0.1 for _ in stages), 0.1 * sp]
    for rank, results in enumerate(by_rank):
        zero = layout.peers(rank, *(axis for axis in ("dp", "sp") if axis in sizes)).tolist()
        for result, lr in zip(results, rates, strict=True):
            plain = [losses[part_of(layout, rank)] for losses in train_on_one_process(2 * sp, lr)]
            assert result.losses == pytest.approx(plain, rel=1e-5)
        for result in results[:2]:
            assert (result.created, result.zero) == (0, zero)
            assert result.batch == 8  # 4 samples for each index of dp


def accumulate(environ: dict[str, str]) -> dict[str, Any]:
    """Return the accumulation steps, the optimizer steps after 8 micro batches, and the check.

    Also return the error of stage 3 of ZeRO, which has no sum over sp.
    """
    import deepspeed

    os.environ.update(environ)
    report: dict[str, Any] = {}
    with strict(), meshkit.build_mesh(dp=2, sp=2, tp=1) as mesh:
        plan = mesh.batch(global_batch=32, micro_batch=2)
        # OpenRLHF multiplies by the ring size and tp, for a DeepSpeed that divides by all ranks
        openrlhf = {"train_batch_size": 32 * 2 * 1, "train_micro_batch_size_per_gpu": 2}
        for name, batch in {"OpenRLHF": openrlhf, "plan": config(plan)}.items():
            network = model()
            engine, *_ = deepspeed.initialize(
                model=network,
                optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
                mpu=Mpu(mesh),
                config={**batch, "zero_allow_untested_optimizer": True},
            )
            for micro in plan.micro_batches(0):
                engine.backward(loss_of(engine, sample(0, micro.index)))
                engine.step()
            error = error_text(partial(check_engine, engine, plan))
            report[name] = engine.gradient_accumulation_steps(), engine.global_steps, error
        return {**report, "stage 3": error_text(lambda: train(mesh, 3, share=True))}


DIFFERENT = """\
BatchError: check_engine(engine, plan): the engine has another batch than the plan: \
train_batch_size, gradient_accumulation_steps.
  train_batch_size: engine 64, plan 32.
  train_micro_batch_size_per_gpu: engine 2, plan 2.
  gradient_accumulation_steps: engine 16, plan 8.
  Fix: deepspeed.initialize(config={**settings, **config(plan)}, ...), with config of \
meshkit.interop.deepspeed."""


@needs_deepspeed
def test_the_engine_accumulates_as_the_plan_says(environ: dict[str, str]) -> None:
    for report in meshkit.spawn(accumulate, 4, (environ,), timeout=COMPILED):
        text = report.pop("stage 3")
        assert text.startswith("SpecError: ZeRO stage 3 does not sum gradients over 2 sequence")
        assert report == {"OpenRLHF": (16, 0, DIFFERENT), "plan": (8, 1, "nothing")}


class Engine:
    """The methods of DeepSpeed's engine that a check calls."""

    def __init__(self, batch: int, micro: int, steps: int, stage: int = 2) -> None:
        self.zero_optimization_stage = lambda: stage
        self.sequence_parallel_size = 2
        self.train_batch_size = lambda: batch
        self.train_micro_batch_size_per_gpu = lambda: micro
        self.gradient_accumulation_steps = lambda: steps


def test_a_config_has_the_batch_of_its_plan() -> None:
    plan = meshkit.BatchPlan.solve(dp=2, global_batch=32, micro_batch=2)
    fields = {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 8,
    }
    assert config(plan) == config(dataclasses.replace(plan, data_index=0)) == fields
    check_engine(Engine(32, 2, 8), plan)
    assert error_text(lambda: check_engine(Engine(64, 2, 16), plan)) == DIFFERENT
    with pytest.raises(meshkit.SpecError, match="ZeRO stage 3"):
        check_engine(Engine(32, 2, 8, stage=3), plan)


def test_an_uneven_plan_has_no_config() -> None:
    plan = meshkit.BatchPlan.solve(dp=3, global_batch=8, micro_batch=2, uneven=True)
    text = error_text(lambda: config(plan))
    assert text.startswith("BatchError: config(plan): the plan is uneven.\n")
    assert text.endswith("  Fix: global_batch=6 or global_batch=12.")


@needs_deepspeed
def test_the_example_trains(environ: dict[str, str]) -> None:
    arguments = str(EXAMPLE), {**environ, "CUDA_VISIBLE_DEVICES": ""}
    outputs = meshkit.spawn(run_example, 4, arguments, timeout=COMPILED)
    assert ["the same weights on 4 ranks\n" in output for output in outputs] == [True] + [False] * 3


def error_text(do: Any) -> str:
    try:
        do()
    except meshkit.MeshkitError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def call_all_methods(mesh: meshkit.Mesh, roles: dict[str, str]) -> Any:
    """Return the result of every method of an mpu, and the number of groups that it created."""
    before = len(dist.distributed_c10d._world.pg_map)
    mpu = Mpu(mesh, **roles)
    methods = sorted(name for name in vars(mpu) if name.startswith("get_"))
    answers = {name: getattr(mpu, name)() for name in methods}
    for name in methods:
        if name.endswith("_group"):
            answers[name] = dist.get_process_group_ranks(answers[name])
    answers["src"] = mpu.get_tensor_model_parallel_src_rank()
    created = len(dist.distributed_c10d._world.pg_map) - before
    return answers, created, hasattr(mpu, "initialize_sequence_parallel"), mpu


def call_and_fail() -> Any:
    """Return the results on each mesh with the error of a method after close; and other errors."""
    results, errors = [], []
    for sizes, groups, roles, _ in MESHES:
        with meshkit.build_mesh(sizes, groups=groups) as mesh:
            *answers, mpu = call_all_methods(mesh, roles)
        results.append((*answers, error_text(mpu.get_data_parallel_group)))
    for sizes, roles, _ in INVALID:
        with meshkit.build_mesh(sizes) as mesh:
            errors.append(error_text(partial(Mpu, mesh, **roles)))
    return results, errors


TENSOR = {"tensor_model_parallel": ("tp",), "slice_parallel": ("tp",)}
PLAIN = {**TENSOR, "data_parallel": ("dp",), "model_parallel": ("tp",)}
MESHES: list[tuple[dict[str, int], list[str], dict[str, str], dict[str, tuple[str, ...]]]] = [
    # the sizes, the groups, the roles, and the axes of each name
    (
        {"pp": 2, "dp": 2, "sp": 2, "tp": 1},
        ["pp tp"],
        {},
        {
            **PLAIN,
            "model_parallel": ("pp", "tp"),
            "pipeline_model_parallel": ("pp",),
            "pipe_parallel": ("pp",),
            "sequence_parallel": ("sp",),
            "sequence_data_parallel": ("dp", "sp"),
        },
    ),
    ({"dp": 4, "tp": 2}, [], {}, PLAIN),
    # ranks along ep read different samples
    ({"dp": 2, "ep": 2, "tp": 2}, [], {}, {**PLAIN, "data_parallel": ("dp", "ep")}),
    (
        {"dp": 4, "cp": 2, "tp": 1},
        [],
        {"sequence": "cp"},
        {**PLAIN, "sequence_parallel": ("cp",), "sequence_data_parallel": ("dp", "cp")},
    ),
]
INVALID: list[tuple[dict[str, int], dict[str, str], str]] = [
    ({"dp": 8}, {}, "SpecError: Mpu(mesh): DeepSpeed needs a model_parallel group, and the mesh"),
    ({"dp": 4, "cp": 2, "tp": 1}, {}, "cp of size 2 is neither data, model, sequence nor pipe"),
    ({"pp": 2, "dp": 2, "tp": 2}, {}, "SpecError: Mpu(mesh): the mesh has no group over pp tp"),
    ({"dp": 4, "tp": 2}, {"sequence": "sq"}, "UnknownAxisError: Mpu(mesh, sequence='sq'): there"),
]


@pytest.fixture(scope="module")
def mpus() -> list[Any]:
    """Return the results of eight ranks."""
    return meshkit.spawn(call_and_fail, 8, timeout=120)


@pytest.mark.parametrize("number", range(len(MESHES)))
def test_every_method_agrees_with_the_mesh(number: int, mpus: list[Any]) -> None:
    sizes, _, _, axes_of = MESHES[number]
    layout = meshkit.Layout(**sizes)
    for rank, (results, _) in enumerate(mpus):
        answers, created, initialize, closed = results[number]
        for name, axes in axes_of.items():
            peers = layout.peers(rank, *axes).tolist()
            assert answers.pop(f"get_{name}_group") == peers
            assert answers.pop(f"get_{name}_group_ranks") == peers
            assert answers.pop(f"get_{name}_rank") == peers.index(rank)
            assert answers.pop(f"get_{name}_world_size") == len(peers)
        assert answers == {"src": layout.peers(rank, "tp").tolist()[0]}
        assert (created, initialize) == (0, False)
        data = ", ".join(map(repr, axes_of["data_parallel"]))
        assert closed.startswith(f"MeshkitError: mesh.group({data}): the mesh is closed.")


def test_invalid_roles_are_errors_of_the_constructor(mpus: list[Any]) -> None:
    for _, errors in mpus:
        for text, (_, _, part) in zip(errors, INVALID, strict=True):
            assert part in text
        assert "groups=['pp tp']" in errors[2].partition("Fix: ")[2]
