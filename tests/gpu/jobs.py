"""Jobs that ``.ci/gpu`` starts: python tests/gpu/jobs.py JOB.

On a GPU all ranks compute on cuda:0 with nccl, each as a host of its own (``own_host``); without
one they use gloo on the CPU. Each job prints a line for each rank, then whether it went as
expected, and exits with 1 if it did not.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import meshkit
from benchmarks.memory import Layer, LiveBytes
from meshkit.plan.memory import RECOMPUTE, ModelShape, ParallelConfig, bytes_per_rank
from meshkit.testing.faults import Played, Strike, play
from tests.scenarios.test_hangs import check_report, report_of

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda:0" if GPU else "cpu")
LIMIT = 8.0 if GPU else 3.0  # seconds of a guard
ASLEEP = 2.5 * LIMIT
FAR = 0.3  # how far a planned number of bytes may be from the measured one
LAST = 3  # the rank of a fault, of four
HANGS = {"raise": "left", "sleep": "busy", "kill": "dead", "stop": "stopped"}  # error.kind of each


def join() -> None:
    """Join the job."""
    meshkit.init(device=DEVICE, timeout=60, arrival_timeout=40)


def wait_for_device() -> None:
    """Return when the GPU has done all work of this process."""
    if GPU:
        torch.cuda.synchronize()


def members(mesh: meshkit.Mesh, *axes: str) -> list[int]:
    """Return the ranks of a group, as a sum over it of one-hot vectors shows them."""
    hot = torch.zeros(dist.get_world_size(), device=DEVICE)
    hot[dist.get_rank()] = 1
    dist.all_reduce(hot, group=mesh.group(*axes))
    return [int(rank) for rank in hot.nonzero().flatten()]


def error_of(call: Callable[[], object]) -> str:
    """Return the error of a call as text, or "through"."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}{getattr(error, 'missing_ranks', ())}: {error}"[:500]
    return "through"


# Healthy jobs


def groups(strike: Strike) -> Any:
    """Build meshes and check each group; count what six more builds leave behind."""
    join()
    meshes = [{"dp": 4, "sp": 2, "tp": 1}, {"dp": 2, "sp": 2, "tp": 2}, {"pp": 2, "tp": 4}]
    for sizes in meshes:
        with meshkit.build_mesh(sizes) as mesh:
            for axis in sizes:
                assert members(mesh, axis) == sorted(mesh.layout.peers(mesh.rank, axis).tolist())
            mesh.verify()
            mesh.agree("lr", 0.1)
    held = []
    for _ in range(6):
        with meshkit.build_mesh(dp=2, sp=2, tp=2) as mesh:
            members(mesh, "dp")
        del mesh
        gc.collect()
        held.append(resources())
    meshkit.shutdown()
    assert not dist.is_initialized()
    assert held[-1] <= held[2], held
    return "right", held[0], held[-1]


def resources() -> tuple[int, int]:
    """Return the number of open descriptors and of threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


# The spec of a move, and where its input and its output are cut by tp.
MOVES = {
    "a b/tp -> a/tp b": (1, 0),
    "a/tp b -> a b/tp": (0, 1),
    "a/tp b -> a b =tp": (0, None),
    "a b =tp -> a b/tp": (None, 1),
    "a b +tp -> a b =tp": ("sum", None),
    "a b +tp -> a/tp b": ("sum", 0),
}


def part(whole: Tensor, cut: int | str | None, place: int, size: int) -> Tensor:
    """Return a rank's part of a whole tensor; a part of a sum is a fraction of it."""
    if isinstance(cut, int):
        return whole.chunk(size, cut)[place].clone()
    return whole * (2.0**place / (2**size - 1)) if cut == "sum" else whole.clone()


def moves(strike: Strike) -> Any:
    """Compare moves and their gradients with numpy's slices of the whole tensor."""
    join()
    worst = 0.0
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        place = mesh.coordinate["tp"]
        numbers = np.random.default_rng(1)
        for spec, (before, after) in MOVES.items():
            whole = torch.from_numpy(numbers.standard_normal((8, 6))).to(DEVICE)
            weight = torch.from_numpy(numbers.standard_normal((8, 6))).to(DEVICE)
            source = part(whole, before, place, 2).requires_grad_()
            moved = mesh.redistribute(source, spec)
            differs(moved, part(whole, after, place, 2), spec)
            (moved * part(weight, after, place, 2)).sum().backward()
            assert source.grad is not None
            expected = weight if before == "sum" else part(weight, before, place, 2)
            worst = max(worst, differs(source.grad, expected, f"gradient of {spec}"))
    meshkit.shutdown()
    return "right", worst


def differs(found: Tensor, expected: Tensor, name: str) -> float:
    """Return how far a tensor is from the expected one; raise if that is more than 1e-12."""
    error = float(abs(found.detach().cpu().numpy() - expected.detach().cpu().numpy()).max())
    assert error < 1e-12, (name, error, found.tolist(), expected.tolist())
    return error


def norms(strike: Strike) -> Any:
    """Compare the norm over ranks with the norm of the whole in numpy."""
    join()
    shapes = {"embed": (16, 8), "norm": (8,), "up": (32, 8), "down": (8, 32)}
    cuts = {"up": 0, "down": 1}
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        numbers = np.random.default_rng(2)
        wholes = {name: numbers.standard_normal(shape) for name, shape in shapes.items()}
        flat = np.concatenate([whole.ravel() for whole in wholes.values()])
        for order in (2.0, 1.0, float("inf")):
            model = nn.ParameterDict()
            for name, whole in wholes.items():
                own = part(torch.from_numpy(whole), cuts.get(name), mesh.coordinate["tp"], 2)
                model[name] = nn.Parameter(torch.zeros_like(own, device=DEVICE))
                model[name].grad = own.to(DEVICE)
            layout = {"up": "o/tp i", "down": "o i/tp"}
            found = float(mesh.clip_grad_norm(model, 1.0, norm_type=order, layout=layout))
            assert abs(found / np.linalg.norm(flat, order) - 1) < 1e-11, (order, found)
    meshkit.shutdown()
    return "right"


def again(strike: Strike) -> Any:
    """Leave the job and join it again, three times, in one process."""
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        join()
        with meshkit.build_mesh(dp=2, tp=2) as mesh:
            assert members(mesh, "tp") == sorted(mesh.peers("tp").tolist())
        del mesh
        meshkit.shutdown()
        seconds.append(round(time.monotonic() - began, 1))
    return "right", seconds


def speed(strike: Strike) -> Any:
    """Time clip_grad_norm beside torch's function, and commit(), on one rank."""
    join()
    found: dict[str, Any] = {}
    with meshkit.build_mesh(dp=1, tp=1) as mesh:
        for count, size in ((1000, 4096), (300, 1 << 20 if GPU else 1 << 12)):
            model = nn.ParameterList(torch.zeros(size, device=DEVICE) for _ in range(count))
            for parameter in model:
                parameter.grad = torch.randn_like(parameter)
            ours = time_call(lambda model=model: mesh.clip_grad_norm(model, 1e9), 20)
            theirs = time_call(
                lambda model=model: nn.utils.clip_grad_norm_([*model], 1e9, foreach=True), 20
            )
            found[f"norm of {count} x {size}"] = f"{ours} us, torch {theirs} us"
        with mesh.guard(timeout=60):
            found["commit()"] = f"{time_call(mesh.commit, 500)} us"
            one = torch.ones(1, device=DEVICE)
            found["all_reduce"] = (
                f"{time_call(lambda: dist.all_reduce(one, group=mesh.group('dp')), 500)} us"
            )
    meshkit.shutdown()
    return "right", found


def equal(strike: Strike) -> Any:
    """Time equal calls, which ranks compare in a guard; capture one there in a CUDA graph."""
    join()
    found: dict[str, Any] = {}
    rows = torch.ones(2, 2, device=DEVICE)
    with meshkit.build_mesh(dp=1, tp=2) as mesh:
        move = mesh.redistribution("a/tp b -> a b")
        found["outside a guard"] = f"{time_call(lambda: move(rows), 200)} us"
        with mesh.guard(timeout=60):
            found["inside a guard"] = f"{time_call(lambda: move(rows), 200)} us"
            if GPU:
                found["captured"] = capture(move, rows)
            mesh.commit()
    meshkit.shutdown()
    return "right", found


def capture(move: Callable[[Tensor], Tensor], rows: Tensor) -> str:
    """Capture a move in a CUDA graph, in which ranks compare nothing, and replay it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            move(rows)
    torch.cuda.current_stream().wait_stream(stream)
    wait_for_device()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        moved = move(rows)
    rows.fill_(3)
    graph.replay()
    assert moved.tolist() == [[3.0, 3.0]] * 4
    return "replayed"


def memory(strike: Strike) -> Any:
    """Compare the most bytes that training takes on one rank with those of ``meshkit plan``."""
    shape = ModelShape(2048, layers=8, heads=16, vocab=32_000, ffn=5632, kv_heads=8)
    small = ModelShape(256, layers=4, heads=8, vocab=1024, ffn=704, kv_heads=4)
    shape, seq = (shape, 2048) if GPU else (small, 512)
    config = ParallelConfig(1, 1, 1, 1, 1, 1, micro_batch=1, recompute=RECOMPUTE.index("none"))
    planned = float(sum(bytes_per_rank(shape, config, 1, seq, "fp32").values()))
    tokens = torch.randint(shape.vocab, (1, seq), device=DEVICE)
    with contextlib.nullcontext() if GPU else LiveBytes() as live:
        layers = [Layer(shape, "none") for _ in range(shape.layers)]
        ends = nn.LayerNorm(shape.hidden, bias=False), nn.Linear(shape.hidden, shape.vocab, False)
        model = nn.Sequential(nn.Embedding(shape.vocab, shape.hidden), *layers, *ends).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            logits = model(tokens).flatten(0, 1)
            nn.functional.cross_entropy(logits, tokens.flatten()).backward()
            del logits
            optimizer.step()
            optimizer.zero_grad()
    measured = torch.cuda.max_memory_allocated() if live is None else live.peak
    text = f"{measured / 1e9:.3f} GB measured, {planned / 1e9:.3f} GB planned"
    return "right" if abs(planned / measured - 1) < FAR else "far", text


def time_call(call: Callable[[], object], count: int) -> float:
    """Return the microseconds of a call, the least of three means."""
    means = []
    for _ in range(3):
        call()
        wait_for_device()
        began = time.perf_counter()
        for _ in range(count):
            call()
        wait_for_device()
        means.append((time.perf_counter() - began) / count)
    return round(min(means) * 1e6, 1)


# Faults


def fault(strike: Strike, kind: str) -> Any:
    """Meet a fault of the last rank in a guard; return the seconds until each later moment.

    "again" is the time of the second job, which begins with a wait for the slowest rank.
    """
    join()
    mesh = meshkit.build_mesh(dp=2, tp=2)
    members(mesh, "dp"), members(mesh, "tp")
    mesh.barrier()
    found: dict[str, Any] = {}
    began = time.monotonic()

    def mark(moment: str) -> None:
        found[moment] = round(time.monotonic() - began, 1)

    try:
        with mesh.guard(timeout=LIMIT):
            for step in range(3):
                struck = step == 1 and mesh.rank == LAST
                if struck:
                    strike_as(strike, kind)
                if not (struck and kind == "skip"):
                    members(mesh, "dp")
                members(mesh, "tp")
                wait_for_device()
        found["error"] = "through"
    except (ValueError, meshkit.CollectiveError) as error:
        missing = getattr(error, "missing_ranks", ())
        found["error"] = type(error).__name__, missing, str(error).split("\n")[:9]
        found["kind"], found["root"] = getattr(error, "kind", ""), getattr(error, "root", ())
    mark("report")
    found["freeing"] = error_of(wait_for_device)
    mark("freed")
    found["closing"] = error_of(mesh.close)
    mark("closed")
    del mesh
    gc.collect()
    found["leaving"] = error_of(meshkit.shutdown)
    if kind in ("raise", "sleep", "skip"):
        if kind == "sleep":  # until the last rank wakes
            time.sleep(max(0.0, began + ASLEEP + 1 - time.monotonic()))
        began_again = time.monotonic()
        join()
        with meshkit.build_mesh(dp=2, tp=2) as built:
            assert members(built, "dp") == sorted(built.peers("dp").tolist())
        meshkit.shutdown()
        found["again"] = round(time.monotonic() - began_again, 1)
    return found


def strike_as(strike: Strike, kind: str) -> None:
    """Let a fault take effect on this rank."""
    strike.note()
    if kind == "raise":
        raise ValueError("bad sample")
    if kind == "sleep":
        time.sleep(ASLEEP)
    if kind == "kill":
        strike.kill()
    if kind == "stop":
        strike.stop()


def hang(strike: Strike, kind: str) -> str:
    """Hang by the calls of the last rank; return the report."""
    join()
    return report_of(strike, kind, LAST, LIMIT)


def recover(strike: Strike, kind: str) -> Any:
    """Train six steps; the last rank is lost before the fourth, and the others go on without it."""
    join()
    mesh, step, seconds = meshkit.build_mesh(dp=-1), 0, []
    total = torch.zeros(1, dtype=torch.float64, device=DEVICE)
    while step < 6:
        began = time.monotonic()
        try:
            with mesh.guard(timeout=LIMIT):
                if step == 3 and strike.rank == LAST:
                    strike_as(strike, kind)
                mean = torch.ones(1, dtype=torch.float64, device=DEVICE) / mesh.size("dp")
                dist.all_reduce(mean, group=mesh.group("dp"))
                wait_for_device()
                mesh.commit()
                total += mean
            step += 1
        except meshkit.CollectiveError as error:
            seconds.append((error.missing_ranks, round(time.monotonic() - began, 1)))
            began = time.monotonic()
            mesh = mesh.recover(step=step)
            step = mesh.recovery.step
            seconds.append(("recovered", round(time.monotonic() - began, 1)))
    size = mesh.size("dp")
    mesh.close()
    meshkit.shutdown()
    return round(float(total), 12), size, seconds


def error_in_mesh(strike: Strike) -> Any:
    """Raise in ``with mesh`` on all ranks; then the default group computes, and a mesh is built."""
    join()
    with contextlib.suppress(ValueError), meshkit.build_mesh(dp=2, tp=2) as mesh:
        members(mesh, "dp")
        strike.note()
        raise ValueError("all ranks raise")
    one = torch.ones(1, device=DEVICE)
    found = [error_of(lambda: dist.all_reduce(one)), error_of(wait_for_device)]
    found.append(error_of(lambda: meshkit.build_mesh(dp=4).close()))
    assert found == ["through"] * 3, found
    meshkit.shutdown()
    return "right"


def unequal(strike: Strike) -> Any:
    """Move tensors of other sizes on one rank, outside and inside a guard: both must raise."""
    join()
    strike.note()
    mesh = meshkit.build_mesh(dp=1, tp=2, timeout=2 * LIMIT)
    rows = torch.ones(2 + strike.rank, 2, device=DEVICE)

    def move() -> None:
        mesh.redistribute(rows, "a/tp b -> a b")
        wait_for_device()

    found = [error_of(move)]
    with contextlib.suppress(Exception):
        mesh.close()
    meshkit.shutdown()
    join()
    mesh = meshkit.build_mesh(dp=1, tp=2, timeout=2 * LIMIT)

    def move_in_guard() -> None:
        with mesh.guard(timeout=LIMIT):
            move()

    found.append(error_of(move_in_guard))
    return found


# The table of the jobs


class Case(NamedTuple):
    """A job, its ranks, its arguments, and whether what its ranks returned is as expected."""

    run: Callable[..., Any]
    ranks: int
    args: tuple[str, ...] = ()
    lost: int = 0  # ranks that leave no outcome


def faulted(kind: str) -> Case:
    """Return the case of a fault."""
    return Case(fault, 4, (kind,), lost=kind in ("kill", "stop"))


CASES = {
    "groups": Case(groups, 8),
    "moves": Case(moves, 4),
    "norms": Case(norms, 4),
    "again": Case(again, 4),
    "speed": Case(speed, 1),
    **{f"fault {kind}": faulted(kind) for kind in ("raise", "sleep", "kill", "stop", "skip")},
    **{f"hang {kind}": Case(hang, 4, (kind,)) for kind in ("mismatch", "order", "message")},
    **{f"recover {kind}": Case(recover, 4, (kind,), lost=1) for kind in ("kill", "stop")},
    "error in mesh": Case(error_in_mesh, 4),
    "unequal": Case(unequal, 2),
    "equal": Case(equal, 2),
    "memory": Case(memory, 1),
}


def is_right(case: Case, played: Played) -> bool:
    """Return whether all ranks that live returned what the job expects of them."""
    outcomes = played.outcomes.values()
    texts = [outcome.text for outcome in outcomes if outcome.kind == "returned"]
    if len(texts) < case.ranks - case.lost:
        return False
    if case.run is fault:
        first = f"look at rank {LAST} first"
        named = [text for text in texts if "'CollectiveError'" in text and first in text]
        repeats = case.lost or all("'again'" in text for text in texts)
        ends = all("'closing': 'through', 'closed'" in text for text in texts)
        # after a skipped collective its rank, and perhaps one beside it, leave the guard in time
        least = 1 if case.args == ("skip",) else LAST
        kind = HANGS.get(str(case.args[0]), "")
        is_named = all(f"'kind': '{kind}', 'root': ({LAST},)" in text for text in named if kind)
        return len(named) >= least and bool(repeats) and ends and is_named
    if case.run is hang:
        try:
            check_report(case.args[0], LAST, played, LIMIT)
        except AssertionError as error:
            print(error)
            return False
        return True
    if case.run is recover:
        return all(text.startswith("(6.0, 3, ") for text in texts)
    if case.run is unequal:
        return not any("through" in text for text in texts)
    return all("right" in text for text in texts)


def main(name: str) -> int:
    """Play a job, and print its outcomes."""
    case, began = CASES[name], time.monotonic()
    played = play(case.run, case.ranks, case.args, timeout=110 if GPU else 60)
    right = is_right(case, played)
    backend = "nccl" if GPU else "gloo on the CPU"
    for rank, end in played.ends.items():
        outcome = played.outcomes.get(rank)
        told = f"{outcome.kind}: {outcome.text}" if outcome else "no outcome"
        print(f"rank {rank} {end}, {told[:1500]}")
    seconds = time.monotonic() - began
    print(f"{name}, {case.ranks} ranks, {backend}, {seconds:.1f} s:", "right" if right else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
