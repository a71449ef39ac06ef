"""``meshkit eject``: the program of plain torch beside the mesh, in real processes."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import meshkit
from meshkit.cli.main import main
from meshkit.launch.torch_groups import KEEPS_ORDER
from tests.cli.processes import Answers
from tests.pool import Pool, start_pool
from tests.preloaded_python import TORCHRUN, run_python

# sizes, options of both the command and build_mesh, batch, and how an epoch is read
MESHES: list[tuple[str, dict[str, Any], tuple[int, int], dict[str, Any]]] = [
    ("dp=4", {}, (16, 2), {"length": 77, "shuffle": True, "seed": 3}),
    ("dp=4", {}, (12, 3), {"length": 31, "shuffle": False, "tail": "pad"}),
    ("dp=2 tp=2", {"order": "tp dp"}, (8, 2), {"length": 45, "shuffle": True, "epochs": 2}),
    ("pp=2 dp=2", {}, (6, 1), {"length": 25, "shuffle": True, "seed": -7, "tail": "drop"}),
    ("dp=2 ep=2", {}, (24, 3), {"length": 100, "shuffle": True, "seed": 2**70}),
    ("dp=1 tp=4", {"groups": ["dp tp"]}, (4, 2), {"length": 9, "shuffle": True}),
    ("tp=4 dp=1", {}, (4, 2), {"length": 1, "shuffle": True}),
    ("data=2 model=2", {}, (8, 4), {"length": 70, "shuffle": True}),
    ("dp=2 sp=2 tp=2", {"groups": ["tp sp", "dp tp"]}, (8, 1), {"length": 50, "shuffle": True}),
    ("dp=2 ep=2 cp=2", {}, (16, 2), {"length": 83, "shuffle": True, "tail": "pad"}),
    ("pp=2 dp=2 ep=1 tp=2", {}, (10, 5), {"length": 12, "shuffle": False}),
]


@pytest.fixture(scope="module")
def four() -> Iterator[Pool]:
    with start_pool(4) as pool:
        yield pool


@pytest.fixture(scope="module")
def eight() -> Iterator[Pool]:
    with start_pool(8) as pool:
        yield pool


def eject(sizes: str, options: dict[str, Any], batch: tuple[int, int]) -> str:
    """Return the program that the command prints."""
    words = [*shlex.split(sizes), "--global-batch", f"{batch[0]}", "--micro-batch", f"{batch[1]}"]
    words += ["--order", options["order"]] if "order" in options else []
    words += [word for axes in options.get("groups", ()) for word in ("--groups", axes)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["eject", *words]) == 0
    return printed.getvalue()


def load(program: str) -> types.ModuleType:
    """Return the program as a module, of which no line has run but its definitions."""
    module = types.ModuleType("plain")
    exec(compile(program, "plain.py", "exec"), vars(module))
    return module


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_groups_samples_and_losses_are_those_of_the_mesh(
    mesh: tuple[str, dict[str, Any], tuple[int, int], dict[str, Any]], four: Pool, eight: Pool
) -> None:
    if "groups" in mesh[1] and not KEEPS_ORDER:
        pytest.skip("this torch sorts the ranks of a group")
    program = eject(*mesh[:3])
    ranks = load(program).WORLD_SIZE
    on_mesh, plain = zip(
        *(four if ranks == 4 else eight).run(run_both, program, *mesh), strict=True
    )
    assert plain == on_mesh
    assert len({tuple(rank["losses"]) for rank in plain}) == 1
    assert len(plain[0]["losses"]) == len(plain[0]["steps"]) > 0


def run_both(
    program: str,
    sizes: str,
    options: dict[str, Any],
    batch: tuple[int, int],
    epoch: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what this rank has of the mesh, and what it has of the program."""
    return run_mesh(sizes, options, batch, epoch), run_plain(program, epoch)


def run_mesh(
    sizes: str, options: dict[str, Any], batch: tuple[int, int], epoch: dict[str, Any]
) -> dict[str, Any]:
    options = {"order": None, **options}
    if "data" in sizes:
        options["order"] = "data model"
    before = dist.get_pg_count()
    by_axis = {axis: int(size) for axis, size in (word.split("=") for word in sizes.split())}
    with meshkit.build_mesh(**by_axis, **options) as mesh:
        groups = {
            " ".join(axes) or "rank": describe(mesh._groups.groups.by_key[key], before)
            for axes, key in mesh._groups.plan.keys.items()
        }
        plan = mesh.batch(global_batch=batch[0], micro_batch=batch[1])
        losses, steps = train_on(mesh, plan, **epoch)
        return {
            "coordinate": dict(mesh.coordinate),
            **{"groups": groups, "losses": losses, "steps": steps},
        }


def train_on(
    mesh: meshkit.Mesh,
    plan: Any,
    length: int,
    epochs: int = 1,
    **order: Any,
) -> tuple[list[float], list[list[Any]]]:
    """Train the model of the program with the calls of the README's trainer."""
    torch.manual_seed(0)
    inputs = torch.randn(length, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    group = mesh.gradient_group()
    model = DistributedDataParallel(torch.nn.Linear(8, 1), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    sampler = mesh.sampler(data, plan, **order)
    losses, steps = [], []
    for _ in range(epochs):
        batches = iter(DataLoader(data, batch_sampler=sampler))
        for step in range(sampler.steps):
            total = torch.zeros(())
            for micro in sampler.micro_batches(step):
                x, y = next(batches)
                with plan.sync_on_last(model, micro):
                    loss = (model(x) - y).square().mean() * micro.weight
                    loss.backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(mean_on_mesh(mesh, total))
            micros = sampler.micro_batches(step)
            steps.append([(m.samples.tolist(), m.weight, m.is_last) for m in micros])
    return losses, steps


def mean_on_mesh(mesh: meshkit.Mesh, total: torch.Tensor) -> float:
    """Return the mean of the totals of all ranks of the gradient group."""
    axes = [axis for axis in mesh.layout.axes if axis in ("dp", "ep", "cp", "sp", "data")]
    if not axes:
        return float(total)
    before, after = (" ".join(f"{mark}{axis}" for axis in axes) for mark in "+=")
    return mesh.redistribute(total, f"{before} -> {after}", op="avg").item()


def run_plain(program: str, epoch: dict[str, Any]) -> dict[str, Any]:
    module, rank, before = load(program), dist.get_rank(), dist.get_pg_count()
    groups = module.make_groups(rank)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            losses = module.train(rank, groups, torch.device("cpu"), **epoch)
        order = {name: epoch[name] for name in ("shuffle", "seed", "tail") if name in epoch}
        index, length = module.data_index(rank), epoch["length"]
        steps = [
            [*module.micro_batches(index, length, step, number, **order)]
            for number in range(epoch.get("epochs", 1))
            for step in range(module.count_steps(length, order.get("tail", "keep")))
        ]
        assert len(printed.getvalue().splitlines()) == (0 if rank else len(losses))
        described = {name: describe(group, before) for name, group in groups.items()}
        coordinate = module.coordinate(rank)
        return {"coordinate": coordinate, "groups": described, "losses": losses, "steps": steps}
    finally:
        for group in {*groups.values()} - {dist.group.WORLD}:
            dist.destroy_process_group(group)


def describe(group: dist.ProcessGroup, before: int) -> tuple[list[int], str, str]:
    """Return the ranks and the description of a group, and its number in the order of creation.

    The name of a group of one rank is a hash, which from torch 2.15 on is another one each time.
    """
    name, number = group.group_name, "a hash"
    if name.isdecimal():
        number = name if name == "0" else f"{int(name) - before}"
    return dist.get_process_group_ranks(group), group.group_desc, number


def test_the_program_runs_under_torchrun(tmp_path: Path) -> None:
    words = shlex.split("dp=2 --global-batch 64 --micro-batch 4 -o")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["eject", *words, str(tmp_path / "plain.py")]) == 0
    program = (tmp_path / "plain.py").read_text()
    start = f"torchrun --nproc-per-node 2 {tmp_path / 'plain.py'}"
    count = len(program.splitlines())
    assert printed.getvalue() == f"{tmp_path / 'plain.py'} has {count} lines; it runs by: {start}\n"
    done = run_python(TORCHRUN, *start.split()[1:])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == [f"step {step}" for step in range(8)]
    losses = [float(line.split()[-1]) for line in lines]
    assert losses[-1] < losses[0] / 100


def test_the_json_has_the_program(answer: Answers, tmp_path: Path) -> None:
    line = f"eject dp=2 tp=2 --global-batch 8 --micro-batch 2 -o {tmp_path / 'plain.py'}"
    code, text, _ = answer(f"{line} --json")
    program = (tmp_path / "plain.py").read_text()
    assert code == 0
    assert json.loads(text) == {
        "program": program.rstrip("\n"),
        "output": str(tmp_path / "plain.py"),
    }


def test_without_a_batch_the_program_has_groups_and_no_samples(answer: Answers) -> None:
    code, program, _ = answer("eject dp=2 foo=2")
    assert code == 0
    module = load(program)
    assert module.list_groups("foo") == [[0, 1], [2, 3]]
    assert not {"train", "micro_batches", "shuffled"} & {*vars(module)}


@pytest.mark.parametrize(("axes", "is_needed"), [("tp sp", True), ("sp tp", False)])
def test_a_program_that_needs_a_newer_torch_says_so(
    axes: str, is_needed: bool, answer: Answers
) -> None:
    _, program, _ = answer(f"eject dp=2 sp=2 tp=2 --groups '{axes}'")
    assert ("sort_ranks=False" in program) is is_needed
    assert ("\nIt needs torch 2.12 or later: " in program) is is_needed


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            "dp=2 foo=2 bar=2 --data 'dp foo' --global-batch 8 --micro-batch 2",
            "the mesh has no group over dp foo, which divide the samples or the tokens.\n"
            "  Gradients are averaged over it.\n"
            "  Fix: add --groups 'dp foo'.\n",
        ),
        (
            "dp=2 -o /nowhere/plain.py",
            "the program cannot be written: No such file or directory.\n"
            "  Fix: a file in an existing folder with write access.\n",
        ),
        (
            "dp=2 --data dp",
            "--data divides the samples of a batch.\n"
            "  Fix: two of --global-batch, --micro-batch and --accumulation-steps beside --data.\n",
        ),
    ],
    ids=["no group", "no folder", "no batch"],
)
def test_what_cannot_be_written_is_refused_with_a_fix(
    answer: Answers, line: str, error: str
) -> None:
    code, out, printed = answer(f"eject {line}")
    assert (code, out) == (2, "")
    assert printed == f"meshkit eject {line}: {error}"


def test_the_fix_for_a_missing_group_works(answer: Answers) -> None:
    line = "eject dp=2 foo=2 bar=2 --data 'dp foo' --global-batch 8 --micro-batch 2"
    code, program, _ = answer(f"{line} --groups 'dp foo'")
    assert code == 0
    assert 'averaged = groups["dp foo"]' in program
