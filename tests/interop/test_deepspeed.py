"""DeepSpeed on a mesh: ZeRO trains as one process does, and an mpu says what the mesh says."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.interop.deepspeed import Mpu
from tests.interop.run_example import run_example

LIBRARY = ["deepspeed"]
# ninja comes with pip, into a folder that need not be in PATH
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
WITH = Path(__file__).parents[2] / "examples" / "with_deepspeed.py"


def missing() -> list[str]:
    """What DeepSpeed needs on a CPU and is not here: it compiles its shared memory collectives."""
    absent = [] if importlib.util.find_spec("deepspeed") else ["deepspeed"]
    return absent + [tool for tool in ("g++", "ninja") if shutil.which(tool, path=PATH) is None]


needs_deepspeed = pytest.mark.skipif(
    bool(missing()),
    reason=f"not installed: {', '.join(missing())}; pip install -e '.[interop]', and g++",
)


@pytest.fixture(scope="module")
def environ(pytestconfig: pytest.Config) -> dict[str, str]:
    """Where it is compiled, once; the lock of a run that was killed would be waited for forever."""
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("torch_extensions")
    for lock in folder.glob("**/lock"):
        lock.unlink()
    return {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(folder), "PATH": PATH}


@pytest.fixture(scope="module", autouse=True)
def _on_the_cpu() -> Iterator[None]:
    """Before the ranks' forkserver imports DeepSpeed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        yield


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Warnings are errors, but for those of DeepSpeed's own calls to torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        warnings.filterwarnings("ignore", "`torch.distributed.all_gather_into_", FutureWarning)
        yield


class Trained(NamedTuple):
    """What a rank saw.

    Attributes:
        losses: of its own samples, by step.
        made: how many groups DeepSpeed made.
        zero: the ranks over which the optimizer is split.
        batch: what DeepSpeed takes the global batch for.
    """

    losses: list[float]
    made: int
    zero: list[int]
    batch: int


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
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # DeepSpeed clips to 1 where nothing is said
    }
    before = len(dist.distributed_c10d._world.pg_map)
    engine, optimizer, *_ = deepspeed.initialize(
        model=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        mpu=Mpu(mesh),
        config=config,
    )
    sp = mesh.layout.sizes.get("sp", 1)
    part = mesh.coordinate["dp"] * sp + mesh.coordinate.get("sp", 0)
    losses = []
    for step in range(STEPS):
        loss = loss_of(engine, sample(step, part))
        engine.backward(loss / sp if share else loss)
        engine.step()
        losses.append(float(loss.detach()))
    made = len(dist.distributed_c10d._world.pg_map) - before
    group = dist.get_process_group_ranks(optimizer.dp_process_group)
    return Trained(losses, made, group, engine.train_batch_size())


def trained(
    environ: dict[str, str], sizes: dict[str, int], cases: list[tuple[int, bool]]
) -> list[Trained]:
    """Train under ZeRO on a mesh.

    Args:
        environ: which device DeepSpeed takes, where it compiles and with what.
        sizes: of the mesh.
        cases: the stage of ZeRO, and whether the loss is this rank's share of the mean over the
            sequence, not the mean over its own part.
    """
    os.environ.update(environ)
    with strict(), meshkit.build_mesh(sizes) as mesh:
        return [train(mesh, stage, share) for stage, share in cases]


def train_on_one_process(parts: int, lr: float = 0.1) -> list[list[float]]:
    """The loss of each part in each step, on one process."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=lr)
    found = []
    for step in range(STEPS):
        losses = [loss_of(network, sample(step, part)) for part in range(parts)]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        found.append([float(loss.detach()) for loss in losses])
    return found


@needs_deepspeed
@pytest.mark.parametrize("sizes", [{"dp": 2, "tp": 2}, {"dp": 2, "sp": 2, "tp": 1}])
def test_zero_trains_as_one_process_does(environ: dict[str, str], sizes: dict[str, int]) -> None:
    sp = sizes.get("sp", 1)
    layout = meshkit.Layout(**sizes)
    cases = [(1, True), (2, True)]
    by_rank = meshkit.spawn(trained, 4, (environ, sizes, cases), timeout=280)
    plain = train_on_one_process(2 * sp)
    for rank, found in enumerate(by_rank):
        place = layout.coordinate(rank)
        part = place["dp"] * sp + place.get("sp", 0)
        for one in found:
            assert one.losses == pytest.approx([losses[part] for losses in plain], rel=1e-5)
            assert one.made == 0
            assert one.zero == layout.peers(rank, *(a for a in ("dp", "sp") if a in sizes)).tolist()
            assert one.batch == 8  # 4 samples a dp


@needs_deepspeed
def test_over_sp_gradients_are_added_up(environ: dict[str, str]) -> None:
    """So a mean over the local part trains with sp times the gradient, as the docstring says."""
    arguments = (environ, {"dp": 2, "sp": 2, "tp": 1}, [(1, False)])
    losses = [found[0].losses for found in meshkit.spawn(trained, 4, arguments, timeout=280)]
    twice = [list(step) for step in zip(*train_on_one_process(4, lr=0.2), strict=True)]
    for mine, plain in zip(losses, twice, strict=True):
        assert mine == pytest.approx(plain, rel=1e-5)


@needs_deepspeed
def test_the_example_trains(environ: dict[str, str]) -> None:
    given = str(WITH), {**environ, "CUDA_VISIBLE_DEVICES": ""}
    said = meshkit.spawn(run_example, 4, given, timeout=280)
    assert ["the same weights on 4 ranks\n" in one for one in said] == [True] + [False] * 3


WORDS = {
    "data_parallel": ("dp",),
    "model_parallel": ("pp", "tp"),
    "tensor_model_parallel": ("tp",),
    "slice_parallel": ("tp",),
    "pipeline_model_parallel": ("pp",),
    "pipe_parallel": ("pp",),
    "sequence_parallel": ("sp",),
    "sequence_data_parallel": ("dp", "sp"),
}


def told(do: Any) -> str:
    try:
        do()
    except meshkit.MeshkitError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def asked(sizes: dict[str, int], groups: list[str], roles: dict[str, str]) -> Any:
    """What every method of an mpu answers; and that none does once the mesh is closed."""
    with meshkit.build_mesh(sizes, groups=groups) as mesh:
        before = len(dist.distributed_c10d._world.pg_map)
        mpu = Mpu(mesh, **roles)
        methods = sorted(name for name in vars(mpu) if name.startswith("get_"))
        answers = {name: getattr(mpu, name)() for name in methods}
        same = {n: answers.pop(n) for n in methods if n.endswith("_group")}
        answers["src"] = mpu.get_tensor_model_parallel_src_rank()
        made = len(dist.distributed_c10d._world.pg_map) - before
        ranks = {name: dist.get_process_group_ranks(group) for name, group in same.items()}
    closed = told(mpu.get_data_parallel_group)
    return answers, ranks, made, closed, hasattr(mpu, "initialize_sequence_parallel")


@pytest.mark.parametrize(
    ("sizes", "groups", "roles", "words"),
    [
        ({"pp": 2, "dp": 2, "sp": 2, "tp": 1}, ["pp tp"], {}, WORDS),
        (
            {"dp": 4, "tp": 2},
            [],
            {},
            {**{w: WORDS[w] for w in list(WORDS)[:4]}, "model_parallel": ("tp",)},
        ),
        (
            {"dp": 4, "cp": 2, "tp": 1},
            [],
            {"sequence": "cp"},
            {
                **{w: WORDS[w] for w in list(WORDS)[:4]},
                "model_parallel": ("tp",),
                "sequence_parallel": ("cp",),
                "sequence_data_parallel": ("dp", "cp"),
            },
        ),
    ],
)
def test_every_method_says_what_the_mesh_says(
    sizes: dict[str, int], groups: list[str], roles: dict[str, str], words: dict[str, tuple[str]]
) -> None:
    layout = meshkit.Layout(**sizes)
    by_rank = meshkit.spawn(asked, 8, (sizes, groups, roles), timeout=120)
    for rank, (answers, ranks, made, closed, initialize) in enumerate(by_rank):
        for word, axes in words.items():
            peers = layout.peers(rank, *axes).tolist()
            assert ranks.pop(f"get_{word}_group") == peers
            assert answers.pop(f"get_{word}_group_ranks") == peers
            assert answers.pop(f"get_{word}_rank") == peers.index(rank)
            assert answers.pop(f"get_{word}_world_size") == len(peers)
        assert answers == {"src": layout.peers(rank, "tp").tolist()[0]}
        assert ranks == {}
        assert made == 0
        assert closed.startswith("MeshkitError: mesh.group('dp'): the mesh is closed.")
        assert not initialize


def refused(cases: list[tuple[dict[str, int], dict[str, str]]]) -> list[str]:
    """What is said of roles that cannot be."""
    found = []
    for sizes, roles in cases:
        with meshkit.build_mesh(sizes) as mesh:
            found.append(told(lambda: Mpu(mesh, **roles)))  # noqa: B023
    return found


def test_roles_that_cannot_be_are_refused_before_anything_is_done() -> None:
    cases: list[tuple[dict[str, int], dict[str, str]]] = [
        ({"dp": 4}, {}),
        ({"dp": 2, "cp": 2, "tp": 1}, {}),
        ({"pp": 2, "dp": 1, "tp": 2}, {}),
        ({"dp": 2, "tp": 2}, {"sequence": "sq"}),
    ]
    by_rank = meshkit.spawn(refused, 4, (cases,), timeout=120)
    assert by_rank == [by_rank[0]] * 4
    assert by_rank[0] == [
        "SpecError: Mpu(mesh): DeepSpeed asks for a model_parallel group, and the mesh has no axis "
        "for it, nor one of size 1.\n"
        "  Fix: give the mesh one, tp=1 say, or name the axes: model=...",
        "SpecError: Mpu(mesh): the axis cp of size 2 is neither data, model, sequence nor "
        "pipeline.\n"
        "  The mesh is Layout(dp=2, cp=2, tp=1).\n"
        "  Ranks along it would train apart, as DeepSpeed reduces no gradient over it.\n"
        "  Fix: Mpu(mesh, sequence='cp'), or Mpu(mesh, data='dp cp').",
        "SpecError: mesh.group('pp', 'tp'): the mesh has no group over pp tp.\n"
        "  It has groups over (pp), (dp), (tp); a getter never creates one.\n"
        "  Fix: build_mesh({'pp': 2, 'dp': 1, 'tp': 2}, groups=['pp tp']).",
        "UnknownAxisError: Mpu(mesh, sequence='sq'): there is no axis 'sq'.\n"
        "  The axes are dp, tp.\n"
        "  Fix: use one of dp, tp.",
    ]
