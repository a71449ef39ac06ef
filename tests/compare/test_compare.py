"""compare_meshes on real ranks: causes, what ranks see, steps that raise or hang, the command."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import meshkit
from meshkit import Mesh
from meshkit.compare import compare as command
from meshkit.launch import worker
from meshkit.testing import compare_meshes
from tests.preloaded_python import run_python

WHOLE = torch.arange(8, dtype=torch.float64).reshape(4, 2) + 1


def all_reduce(x: Tensor, mesh: Mesh, axis: str) -> Tensor:
    dist.all_reduce(x, group=mesh.group(axis))
    return x


def index(mesh: Mesh, axis: str) -> int:
    return mesh.coordinate.get(axis, 0)


def router(mesh: Mesh, *, is_wrong: bool) -> dict[str, Tensor]:
    """Return the gradients of a linear layer cut over tp, and of a router that all ranks share."""
    torch.manual_seed(0)
    inputs, weights = torch.randn(8, 4), torch.randn(6, 4)
    router = torch.randn(6, 4, requires_grad=True)
    x = inputs.chunk(mesh.size("dp"))[index(mesh, "dp")]
    own = weights.chunk(mesh.size("tp"))[index(mesh, "tp")].clone().requires_grad_()
    used = router if is_wrong else mesh.redistribute(router, "e d =tp -> e d *tp")
    gates = (x @ used.T).chunk(mesh.size("tp"), 1)[index(mesh, "tp")]
    loss = (gates * (x @ own.T)).sum() / len(inputs)
    loss.backward()
    for grad in (own.grad, router.grad):
        all_reduce(grad, mesh, "dp")
    total = all_reduce(all_reduce(loss.detach().clone(), mesh, "dp"), mesh, "tp")
    return {"loss": total, "grad own": own.grad, "grad router": router.grad}


MESHES = "dp=4", "dp=2 tp=2", "dp=1 sp=2 tp=2"


def test_a_router_without_a_reduction_is_named_with_its_axis() -> None:
    report = compare_meshes(
        lambda mesh: router(mesh, is_wrong=True), *MESHES, layout={"grad own": "o/tp i"}
    )
    rows = [(d.mesh, d.name, d.axes, d.cause, d.factor) for d in report.differences]
    assert rows == [
        ("dp=2 tp=2", "grad router", ("tp",), "missing sum", None),
        ("dp=1 sp=2 tp=2", "grad router", ("tp",), "missing sum", None),
    ]
    with pytest.raises(AssertionError, match="grad router on dp=2 tp=2 is not that of one rank"):
        report.raise_if_different()


def test_the_right_twin_has_no_difference() -> None:
    report = compare_meshes(
        lambda mesh: router(mesh, is_wrong=False), *MESHES, layout={"grad own": "o/tp i"}
    )
    assert report.differences == ()
    assert str(report).startswith("3 tensors on 3 meshes: all are those of one rank (")
    report.raise_if_different()


def test_dtensors_are_compared_whole_and_numbers_as_they_are() -> None:
    def step(mesh: Mesh) -> dict[str, Any]:
        device_mesh = mesh.device_mesh("dp", "tp")
        shards = [Shard(0), Replicate()]
        whole = distribute_tensor(WHOLE.clone(), device_mesh, shards)
        local = WHOLE.chunk(mesh.size("dp"))[index(mesh, "dp")] * (1 + index(mesh, "tp"))
        wrong = DTensor.from_local(local, device_mesh, shards)
        return {"whole": whole, "wrong": wrong, "count": 3, "nothing": None}

    report = compare_meshes(step, "dp=2 tp=2")
    assert [(d.name, d.cause, d.axes) for d in report.differences] == [
        ("wrong", "one part", ("tp",))
    ]


def test_a_part_without_a_layout_asks_for_one() -> None:
    def step(mesh: Mesh) -> dict[str, Tensor]:
        return {"w": WHOLE.chunk(mesh.size("tp"))[index(mesh, "tp")]}

    (row,) = compare_meshes(step, "tp=2").differences
    assert (row.cause, row.axes, "give layout=" in row.text) == ("one part", ("tp",), True)
    assert compare_meshes(step, "tp=2", "dp=2", layout={"w": "a/tp b"}).differences == ()


def test_ranks_see_the_caller_and_are_used_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPARED", "yes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("told.py").write_text("NUMBER = 7\n")

    def step(mesh: Mesh) -> dict[str, Any]:
        import told  # type: ignore[import-not-found]

        text = f"{os.environ['COMPARED']} {told.NUMBER} {torch.get_default_dtype()} {mesh.device}"
        name = f"{mesh.layout.sizes_text} {mesh.rank} {dist.get_world_size()}"
        Path(f"{name} {os.getpid()} {time.time()}").write_text(text)
        return {"random": torch.rand(3), "numpy": np.random.rand()}

    assert compare_meshes(step, "dp=3", "tp=2", {"dp": 2, "tp": 2}).differences == ()
    files = [path for path in tmp_path.iterdir() if path.name.startswith("dp=")]
    assert {path.read_text() for path in files} == {"yes 7 torch.float64 cpu"}
    names = sorted(path.name.rsplit(" ", 2)[0] for path in files)
    assert names == sorted(
        ["dp=1 0 1"] * 2 + [f"dp=3 {r} 3" for r in range(3)] + ["dp=1 tp=1 0 1"]
        + [f"dp=1 tp=2 {r} 2" for r in range(2)] + [f"dp=2 tp=2 {r} 4" for r in range(4)]
    )  # fmt: skip
    pids = {int(path.name.split()[-2]) for path in files}
    assert len(pids) == 4
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_rank_that_raises_or_hangs_or_dies_is_a_row(tmp_path: Path) -> None:
    def step(mesh: Mesh) -> dict[str, Tensor]:
        (tmp_path / str(os.getpid())).touch()
        if mesh.size("tp") == 2 and mesh.rank == 1:
            raise ValueError("no such expert")
        if mesh.size("dp") == 2 and mesh.rank == 1:
            return {"x": WHOLE}
        if mesh.size("cp") == 2 and mesh.rank == 1:
            os._exit(3)
        dist.barrier()
        return {"x": WHOLE}

    began = time.monotonic()
    report = compare_meshes(step, "dp=2", "tp=2", "cp=2", "sp=2", timeout=2)
    assert time.monotonic() - began < 30
    hung, raised, died = report.differences
    rows = [(row.mesh, row.cause) for row in report.differences]
    assert rows == [("dp=2", "hung"), ("tp=2", "raised"), ("cp=2", "raised")]
    assert "rank 1 ended by itself, with exit code 3" in died.text
    assert "rank 0 did not return within 2 s, rank 1 did" in hung.text
    line = f"{__file__}:{step.__code__.co_firstlineno + 8}"
    assert f"rank 0 is at {line}" in hung.text
    assert "rank 1 raised ValueError: no such expert" in raised.text
    assert f"{__file__}:{step.__code__.co_firstlineno + 3} in step" in raised.text
    assert report.meshes == ("dp=2", "tp=2", "cp=2", "sp=2")
    assert not any(Path(f"/proc/{path.name}").exists() for path in tmp_path.iterdir())


def test_one_rank_that_raises_is_a_row() -> None:
    def step(mesh: Mesh) -> dict[str, Tensor]:
        raise KeyError("weights")

    (row,) = compare_meshes(step, "dp=2").differences
    assert (row.mesh, row.cause) == ("dp=1", "raised")


def test_state_outside_step_is_refused() -> None:
    weight = torch.ones(2, requires_grad=True)

    def step(mesh: Mesh) -> dict[str, Tensor | None]:
        weight.sum().backward()
        return {"grad weight": weight.grad}

    with pytest.raises(meshkit.SpecError, match="a second time gets another grad weight"):
        compare_meshes(step, "dp=2")


def returns_ones(mesh: Mesh) -> dict[str, Tensor]:
    return {"x": torch.ones(2)}


def test_a_process_that_cannot_be_forked_imports_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "used_accelerator", lambda: "cuda")
    assert compare_meshes(returns_ones, "dp=2").differences == ()
    with pytest.raises(meshkit.SpecError, match="cannot be forked: it uses cuda"):
        compare_meshes(lambda mesh: returns_ones(mesh), "dp=2")


@pytest.mark.parametrize(
    "call",
    [
        lambda: compare_meshes(returns_ones),
        lambda: compare_meshes("step", "dp=2"),  # type: ignore[arg-type]
        lambda: compare_meshes(returns_ones, "dp"),
        lambda: compare_meshes(returns_ones, "dp=2 dp=3"),
        lambda: compare_meshes(returns_ones, "dp=0"),
        lambda: compare_meshes(returns_ones, "dq=2,tp=2", timeout=-1),
        lambda: compare_meshes(returns_ones, "dp=2", layout={"x": "a/"}),
        lambda: compare_meshes(returns_ones, "dp=2", reduce={"x": "max"}),
    ],
)
def test_wrong_requests_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(meshkit.SpecError) as caught:
        call()
    assert str(caught.value).startswith("compare_meshes(")
    assert "Fix: " in str(caught.value)


PROGRAM = """\
import helper, torch

def step(mesh):
    return {"w": torch.ones(2) * helper.factor(mesh), "loss": mesh.coordinate["dp"] + 1.0}
"""


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text('def factor(mesh): return mesh.size("tp")\n')
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = [f"{tmp_path}/train.py:step", "dp=1", "dp=1 tp=2"]
    assert command.main(words) == 1
    assert (
        "It is 2 times that of one rank (up to rounding): the size of tp."
        in capsys.readouterr().out
    )
    assert command.main([words[0], "dp=1"]) == 0
    assert capsys.readouterr().out.startswith("2 tensors on 1 mesh: all are those of one rank")
    assert command.main([words[0], "dp=3", "--reduce", "loss=avg"]) == 1
    for wrong in ([f"{tmp_path}/train.py:stop", "dp=1"], ["none.py:step", "dp=1"],
                  [words[0], "dp"]):  # fmt: skip
        with pytest.raises(SystemExit) as caught:
            command.main(wrong)
        assert caught.value.code == 2


def test_the_module_runs_as_a_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def step(mesh): return {'x': 1}\n")
    code = "import runpy\nrunpy.run_module('meshkit.compare.compare', run_name='__main__')"
    done = run_python(code, "train.py:step", "dp=1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1 tensor on 1 mesh: all are those of one rank (up to rounding).\n"


# what one rank of a mesh returns -> what one rank returns
ODD: dict[str, tuple[Any, Any]] = {
    "nan": (float("nan"), 1.0),
    "inf": (float("inf"), 1.0),
    "-inf": (float("-inf"), float("inf")),
    "no nan": (1.0, float("nan")),
    "complex nan": (complex(1, float("nan")), complex(1, 1)),
    "imaginary part": (complex(1, 2), complex(1, 1)),
    "bool": (True, False),
}


@pytest.mark.parametrize("holder", range(3))
@pytest.mark.parametrize("layout", [None, {"*": "n/dp"}, {"*": "n +dp"}], ids=str)
def test_an_odd_value_on_any_rank_is_a_difference(
    holder: int, layout: dict[str, str] | None
) -> None:
    def step(mesh: Mesh) -> dict[str, Tensor]:
        values = {}
        for name, (odd, usual) in ODD.items():
            size = 6 // mesh.size("dp") if layout and "/" in layout["*"] else 6
            values[name] = torch.full((size,), usual)
            if layout and "+" in layout["*"] and index(mesh, "dp"):
                values[name] = torch.zeros_like(values[name])
            if mesh.size("dp") > 1 and index(mesh, "dp") == holder:
                values[name][1] = odd
        return values

    report = compare_meshes(step, "dp=3", layout=layout)
    wanted = {*ODD}
    if layout and "+" in layout["*"] and holder:  # added to the usual value, these change nothing
        wanted -= {"bool", "no nan"}
    assert wanted - {difference.name for difference in report.differences} == set()


def test_equal_values_of_every_kind_are_no_difference() -> None:
    def step(mesh: Mesh) -> dict[str, Tensor]:
        x = torch.tensor([float("nan"), float("inf"), 1.0])
        kinds = {"x": x, "complex": x * 1j, "expanded": x[:, None].expand(3, 2)}
        kinds |= {"empty": x[:0], "0-dim": x[0], "bool": x > 0, "conjugate": (x * 1j).conj()}
        return {**kinds, "negative": torch._neg_view(x), "frozen": x.requires_grad_()}

    assert compare_meshes(step, "dp=2", "dp=3").differences == ()
