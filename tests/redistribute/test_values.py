"""The law of values: whatever moves or combines is tried with every kind of tensor.

Each operation gives what torch gives in one process, NaN and dtype included, or refuses the tensor
before it is touched. Ranks are real, and one process is the oracle.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import pytest
import torch
from torch import Tensor

import meshkit
from meshkit.launch.tensors import plain
from tests.pool import Pool
from tests.redistribute.values import KINDS, equal

RANKS = 4  # of the pool
COMBINE = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}

# a pattern over tp, and the result of a rank from the combined tensor
Result = Callable[[Tensor, int], Tensor]
PATTERNS: dict[str, Result] = {
    "a b +tp -> a b =tp": lambda whole, rank: whole,
    "a b +tp -> a/tp b": lambda whole, rank: whole.tensor_split(RANKS)[rank],
    "a b +tp -> a b/tp": lambda whole, rank: whole.tensor_split(RANKS, 1)[rank],
    "a b +tp -> a b @tp:1": lambda whole, rank: whole if rank == 1 else torch.zeros_like(whole),
    "a/tp b -> a b =tp": lambda whole, rank: whole,
    "a b/tp -> a b =tp": lambda whole, rank: whole,
    "a/tp b -> a b/tp": lambda whole, rank: whole.tensor_split(RANKS, 1)[rank],
    "a/tp b -> a b @tp:0": lambda whole, rank: whole if rank == 0 else torch.zeros_like(whole),
    "a b =tp -> b a/tp": lambda whole, rank: whole.t().tensor_split(RANKS, 1)[rank],
    "a b @tp:1 -> a b =tp": lambda whole, rank: whole,
    "a b @tp:1 -> a/tp b": lambda whole, rank: whole.tensor_split(RANKS)[rank],
}
UNEVEN = ("a b +tp -> a/tp b", "a b =tp -> b a/tp", "a b @tp:1 -> a/tp b")  # a is 6
SCALARS: dict[str, Result] = {
    "+tp -> =tp": lambda whole, rank: whole,
    "+tp -> @tp:1": lambda whole, rank: whole if rank == 1 else torch.zeros_like(whole),
    "@tp:1 -> =tp": lambda whole, rank: whole,
}


def combine(left: str, tensors: Sequence[Tensor], op: str) -> Tensor:
    """Return the tensor of one process whose parts the ranks hold."""
    if "+tp" in left:
        total = reduce(COMBINE["sum" if op == "avg" else op], tensors)
        return total / RANKS if op == "avg" else total
    if "/tp" in left:
        return torch.cat([*tensors], 0 if "a/tp" in left else 1)
    return tensors[1 if "@tp:1" in left else 0]


def is_refused(kind: Tensor, pattern: str, op: str) -> bool:
    """Return whether an operation must refuse a dtype."""
    if "+tp" not in pattern:
        return False
    whole = not (kind.is_floating_point() or kind.is_complex())
    no_backend = kind.dtype in (torch.int16, torch.uint16, torch.float8_e4m3fn)
    return no_backend or (op == "avg" and whole) or (op in ("max", "min") and kind.is_complex())


def run(mesh: meshkit.Mesh, x: Tensor, pattern: str, op: str, sizes: dict[str, int]) -> list[Any]:
    """Return the results of both calls, or their errors."""
    results: list[Any] = []
    for call in (
        lambda: mesh.redistribute(x, pattern, op=op, sizes=sizes),
        lambda: mesh.begin(x, pattern, op=op, sizes=sizes).wait(),
    ):
        try:
            results.append(call())
        except meshkit.SpecError as error:
            results.append(error)
    return results


def move_values(patterns: Sequence[str], names: Sequence[str], scalar: bool) -> list[str]:
    """Return the operations of this rank that are wrong."""
    wrong = []
    with meshkit.build_mesh(tp=RANKS) as mesh:
        for name, pattern in itertools.product(names, patterns):
            left = pattern.partition("->")[0]
            sources = [0] * RANKS if "=tp" in left else range(RANKS)
            tensors = [KINDS[name](rank) for rank in sources]
            if scalar:
                tensors = [x[0, 0] for x in tensors]
            x, before = tensors[mesh.rank], tensors[mesh.rank].clone()
            sizes = {"a": 6} if pattern in UNEVEN and not scalar and len(x) else {}
            for op in COMBINE if "+tp" in left else ["sum"]:
                wanted: Any = None
                if not is_refused(x, pattern, op):
                    whole = combine(left, tensors, op)
                    wanted = {**PATTERNS, **SCALARS}[pattern](whole, mesh.rank)
                results = run(mesh, x, pattern, op, sizes)
                if not all(is_wanted(result, wanted) for result in results):
                    wrong.append(f"{name} by {pattern!r}, {op}: {results}, not {wanted}")
                if not equal(x, before):
                    wrong.append(f"{pattern!r}, {op} has changed {name}")
    return wrong


def is_wanted(result: Tensor | Exception, wanted: Tensor | None) -> bool:
    """Return whether a result is the wanted one; None stands for a refusal."""
    if isinstance(result, Exception) or wanted is None:
        return isinstance(result, Exception) and wanted is None
    return equal(result, wanted)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_redistribution_of_every_kind_is_that_of_one_process(pattern: str, pool: Pool) -> None:
    assert pool.run(move_values, [pattern], [*KINDS], False) == [[]] * RANKS


def test_a_redistribution_of_one_number_is_that_of_one_process(pool: Pool) -> None:
    names = [name for name, make in KINDS.items() if make(0).numel()]
    assert pool.run(move_values, [*SCALARS], names, True) == [[]] * RANKS


# ------------------------------------------------------------------ averages at the ends of a dtype

AVERAGED = ("a b +tp -> a b =tp", "a b +tp -> a/tp b", "a b +tp -> a b/tp", "a b +tp -> a b @tp:1")


def average_extremes(ranks: int) -> list[str]:
    """Return the averages, and their gradients, that are not those of wider numbers."""
    wrong = []
    with meshkit.build_mesh(tp=ranks, ranks=[*range(ranks)]) as mesh:
        if not mesh.inside:
            return []
        floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        for dtype, rows, pattern in itertools.product(floats, (ranks, 5), AVERAGED):
            info = torch.finfo(dtype)
            tiny = 2.0**-24 if dtype == torch.float16 else info.smallest_normal * 8
            values = torch.tensor([info.max, -info.max, tiny, 3 * tiny, 1], dtype=dtype)
            x = values.expand(rows, 5).clone().requires_grad_()
            sizes = {"a": rows, "b": 5}
            for begins in (False, True):
                if begins:
                    y = mesh.begin(x.detach(), pattern, op="avg", sizes=sizes).wait()
                else:
                    y = mesh.redistribute(x, pattern, op="avg", sizes=sizes, grad_dtype=dtype)
                wanted = PATTERNS[pattern](x.detach(), mesh.rank)
                if "/tp" in pattern:
                    wanted = x.detach().tensor_split(ranks, int("b/tp" in pattern))[mesh.rank]
                if not torch.allclose(y.double(), wanted.double(), rtol=info.eps, atol=0):
                    wrong.append(f"{dtype}, {pattern!r}, {begins}: {y}, not {wanted}")
                if y.dtype != dtype:
                    wrong.append(f"{dtype} became {y.dtype}")
            y = mesh.redistribute(x, pattern, op="avg", sizes=sizes, grad_dtype=dtype)
            y.backward(torch.full_like(y, 8))
            if not torch.allclose(
                x.grad.double(), x.grad.new_tensor(8 / ranks).double(), rtol=info.eps
            ):
                wrong.append(f"{dtype}, {pattern!r}: gradient {x.grad}")
    return wrong


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_an_average_of_numbers_at_the_ends_of_a_dtype_is_right(ranks: int, pool: Pool) -> None:
    assert pool.run(average_extremes, ranks) == [[]] * RANKS


# ------------------------------------------------------------------ other moves


def pass_on(mesh: meshkit.Mesh, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the result of a shift, and the wanted one."""
    return mesh.shift(tensors[mesh.rank], "tp"), tensors[mesh.rank - 1]


def swap_rows(mesh: meshkit.Mesh, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the result of an exchange of rows, and the wanted one."""
    x = tensors[mesh.rank]
    counts = [len(x) // 3, 0, len(x) // 3, len(x) - 2 * (len(x) // 3)]
    wanted = [torch.split(tensor, counts)[mesh.rank] for tensor in tensors]
    return mesh.exchange(x, "tp", counts)[0], torch.cat(wanted)


def join(mesh: meshkit.Mesh, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the whole state, and the wanted one."""
    state = {"optimizer": [{"w": tensors[mesh.rank]}]}
    whole = mesh.whole_state(state, {"*.w": "a/tp b"})
    return whole["optimizer"][0]["w"], torch.cat([*tensors])


def cut(mesh: meshkit.Mesh, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the local state, and the wanted one."""
    local = mesh.local_state({"w": tensors[0]}, {"w": "a/tp b"})
    return local["w"], tensors[0].tensor_split(RANKS)[mesh.rank]


def check_marks(mesh: meshkit.Mesh, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the result of a checked redistribution of a copy, and the wanted one."""
    with mesh.checked():
        y = mesh.redistribute(tensors[0], "a b =tp -> a b *tp", a=len(tensors[0]))
    return y, tensors[0]


def run_move(move: Callable[..., tuple[Tensor, Tensor]]) -> list[str]:
    """Return the kinds that a move gets wrong."""
    wrong = []
    with meshkit.build_mesh(tp=RANKS) as mesh:
        for name, make in KINDS.items():
            tensors = [make(rank) for rank in range(RANKS)]
            result, wanted = move(mesh, tensors)
            if not equal(result, wanted):
                wrong.append(f"{name}: {result}, not {wanted}")
            if not all(equal(x, make(rank)) for rank, x in enumerate(tensors)):
                wrong.append(f"{name} has changed")
    return wrong


@pytest.mark.parametrize("move", [pass_on, swap_rows, join, cut, check_marks])
def test_a_move_of_every_kind_is_that_of_one_process(
    move: Callable[..., tuple[Tensor, Tensor]], pool: Pool
) -> None:
    assert pool.run(run_move, move) == [[]] * RANKS


def move_to_other_ranks(begins: bool) -> list[str]:
    """Return the kinds that another mesh does not get as they were sent."""
    wrong = []
    pair = meshkit.build_mesh(tp=2, ranks=[0, 1]), meshkit.build_mesh(dp=3, ranks=[1, 2, 3])
    with pair[0] as source, pair[1] as target:
        for number, (name, make) in enumerate(KINDS.items()):
            tensors = [make(rank) for rank in range(2)]
            x = tensors[source.rank] if source.inside else None
            pattern = f"a{number}/tp b -> a{number} b/dp"  # ranks know the dtype of a pattern
            if begins:
                y = source.begin(x, pattern, to=target, b=4).wait()
            else:
                y = source.redistribute(x, pattern, to=target, b=4)
            if target.inside:
                wanted = torch.cat(tensors).tensor_split(3, 1)[target.rank - 1]
                if not equal(y, wanted):
                    wrong.append(f"{name}: {y}, not {wanted}")
            elif y is not None:
                wrong.append(f"{name}: {y} outside the target")
    return wrong


@pytest.mark.parametrize("begins", [False, True], ids=["redistribute", "begin"])
def test_another_mesh_gets_every_kind(begins: bool, pool: Pool) -> None:
    assert pool.run(move_to_other_ranks, begins) == [[]] * RANKS


def like(x: Tensor, fill: str) -> Tensor:
    """Return a tensor to fill: a contiguous one, or a view of a kind."""
    if fill == "conjugate" and x.is_complex():
        return torch.zeros_like(plain(x)).conj()
    if fill == "negative" and (x.is_floating_point() or x.is_complex()) and x.element_size() > 1:
        return torch._neg_view(torch.zeros_like(plain(x)))
    if fill == "a slice":
        return torch.zeros_like(x.new_empty(len(x), 8))[:, 4:]
    return torch.zeros_like(plain(x), memory_format=torch.contiguous_format)


def transfer_values(staged: bool, fill: str) -> list[str]:
    """Return the kinds that do not arrive."""
    wrong = []
    pair = meshkit.build_mesh(tp=2, ranks=[0, 1]), meshkit.build_mesh(dp=3, ranks=[1, 2, 3])
    with pair[0] as source, pair[1] as target:
        whole = {name: torch.cat([make(0), make(1)]) for name, make in KINDS.items()}
        state = {name: make(source.rank) for name, make in KINDS.items()}
        out = {name: like(x, fill) for name, x in whole.items()}
        held = state if source.inside else out
        sync = source.transfer({"*": "a/tp b -> a b"}, to=target, like=held, staged=staged)
        got = sync(state if source.inside else None, out=out if target.inside and fill else None)
        if not target.inside:
            return [] if got is None else [f"{got} outside the target"]
        wrong += [name for name, x in got.items() if not equal(x, whole[name])]
        wrong += [name for name, x in got.items() if fill and x is not out[name]]
    return wrong


@pytest.mark.parametrize("fill", ["", "contiguous", "conjugate", "negative", "a slice"])
@pytest.mark.parametrize("staged", [False, True])
def test_a_transfer_brings_every_kind(staged: bool, fill: str, pool: Pool) -> None:
    assert pool.run(transfer_values, staged, fill) == [[]] * RANKS


# ------------------------------------------------------------------ gradients


def move_gradients() -> list[str]:
    """Return the gradients that lose a part."""
    wrong = []
    pair = meshkit.build_mesh(tp=2, ranks=[0, 1]), meshkit.build_mesh(dp=2, ranks=[2, 3])
    with meshkit.build_mesh(tp=RANKS) as mesh, pair[0] as source, pair[1] as target:
        for grad_dtype in (None, torch.complex128):
            x = torch.full((4, 4), 1 + 1j, dtype=torch.complex64, requires_grad=True)
            y = mesh.redistribute(x, "a b =tp -> a b *tp", grad_dtype=grad_dtype)
            y.backward(torch.full_like(y, 2 + 3j))
            if not equal(x.grad, torch.full_like(x, 4 * (2 + 3j))):
                wrong.append(f"{grad_dtype}: {x.grad}")
        for real in (torch.float32, torch.float64, torch.bfloat16):
            for pattern in ("a b =tp -> a b *tp", "a/tp b -> a b/tp"):
                with pytest.raises(meshkit.SpecError, match="the imaginary part"):
                    mesh.redistribute(x, pattern, grad_dtype=real)
            own = x if source.inside else None
            with pytest.raises(meshkit.MeshkitError, match="the imaginary part"):
                source.redistribute(own, "a b =tp -> a b *dp", to=target, grad_dtype=real)
        with torch.no_grad():
            mesh.redistribute(x, "a b =tp -> a b *tp", grad_dtype=torch.float32)
    return wrong


def test_a_complex_gradient_keeps_its_imaginary_part(pool: Pool) -> None:
    assert pool.run(move_gradients) == [[]] * RANKS


def fill_other_dtypes(staged: bool) -> list[str]:
    """Return the conversions of a transfer that are not as they must be."""
    wrong = []
    dtypes = (torch.bool, torch.int32, torch.float32, torch.complex64)
    with meshkit.build_mesh(tp=2, ranks=[0, 1]) as source, meshkit.build_mesh(ranks=[2]) as target:
        for number, sent in enumerate(dtypes):
            for other, held in enumerate(dtypes):
                x = torch.ones(4).to(sent)
                out = torch.zeros(8, dtype=held)
                own = {"w": x if source.inside else out}
                if not (source.inside or target.inside):
                    continue
                try:
                    sync = source.transfer({"w": "a/tp -> a"}, to=target, like=own, staged=staged)
                    sync(own if source.inside else None, out=own if target.inside else None)
                except meshkit.DisagreementError as error:
                    if other >= number or "w" not in str(error):
                        wrong.append(f"{sent} to {held}: {error}")
                else:
                    if other < number or (target.inside and not out.equal(torch.ones_like(out))):
                        wrong.append(f"{sent} to {held}: {out}")
    return wrong


def fill_other_ints() -> list[str]:
    """Return the whole numbers that wrap in a smaller dtype."""
    wrong = []
    pairs = ("int64 int32", "int32 uint8", "int8 uint8", "uint8 int8", "int32 int64", "uint8 int32")
    with meshkit.build_mesh(ranks=[0, 1]) as source, meshkit.build_mesh(ranks=[1, 2]) as target:
        for sent, held in (pair.split() for pair in pairs):
            if not (source.inside or target.inside):
                continue
            x = {
                "w": torch.full((4,), torch.iinfo(getattr(torch, sent)).min).to(
                    getattr(torch, sent)
                )
            }
            out = {"w": torch.ones(4, dtype=getattr(torch, held))}
            is_refused = held != "int64" and (sent, held) != ("uint8", "int32")
            try:
                sync = source.transfer({"w": "a -> a"}, to=target, like=x if source.inside else out)
                sync(x if source.inside else None, out=out if target.inside else None)
            except meshkit.MeshkitError as error:
                if not is_refused or held not in str(error):
                    wrong.append(f"{sent} to {held}: {error}")
            else:
                if is_refused or (target.inside and out["w"].tolist() != x["w"].tolist()):
                    wrong.append(f"{sent} to {held}: {out}")
    return wrong


def test_a_transfer_refuses_to_fill_a_dtype_in_which_whole_numbers_wrap(pool: Pool) -> None:
    assert pool.run(fill_other_ints) == [[]] * RANKS


@pytest.mark.parametrize("staged", [False, True])
def test_a_transfer_refuses_to_fill_a_dtype_that_loses_a_part(staged: bool, pool: Pool) -> None:
    assert pool.run(fill_other_dtypes, staged) == [[]] * RANKS


# ------------------------------------------------------------------ checks of equal values


def changed(x: Tensor) -> Tensor:
    """Return a copy with another bit in its first element, or another shape if it has none."""
    if not x.numel():
        return x.new_empty(*x.shape[:-1], x.shape[-1] + 1)
    y = plain(x).clone(memory_format=torch.contiguous_format)
    y.view(-1).view(torch.uint8)[0] ^= 1
    return y


def check_kinds(check: str) -> list[str]:
    """Return the kinds that a check calls different on equal ranks, or equal on different ones."""
    wrong = []
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        calls: dict[str, Callable[[str, Any], None]] = {
            "agree": lambda name, x: mesh.agree(name, {"x": [x, x]}),
            "check_batch": lambda _, x: mesh.check_batch({"x": (x, x), "i": mesh.coordinate["dp"]}),
            "check_parameters": lambda _, x: mesh.check_parameters({"x": x, "tied": x}),
        }
        scalars = {
            f"{n}, one number": (lambda r, m=m: m(r)[1, 1]) for n, m in KINDS.items() if len(m(0))
        }
        for name, make in {**KINDS, **scalars}.items():
            for differs in (False, True):
                x = make(1)
                x = changed(x) if differs and mesh.rank == 3 else x
                try:
                    calls[check](f"{name} {differs}", x)
                except meshkit.MeshkitError as error:
                    if not differs or "3" not in str(error):
                        wrong.append(f"{name}, {differs}: {error}")
                else:
                    # the text of a small tensor has one word for all kinds of NaN
                    is_nan = check == "agree" and x.numel() == 1 and bool((x != x).any())
                    if differs and not is_nan:
                        wrong.append(f"{name}: a changed bit was not seen")
    return wrong


@pytest.mark.parametrize("check", ["agree", "check_batch", "check_parameters"])
def test_a_check_sees_each_bit_of_every_kind(check: str, pool: Pool) -> None:
    assert pool.run(check_kinds, check) == [[]] * RANKS


# ------------------------------------------------------------------ two names of one tensor

TIES: dict[str, Callable[[Tensor], Tensor]] = {
    "the tensor": lambda x: x,
    "a view of it": lambda x: x.view(x.shape),
    "a view of a view": lambda x: x.t().t(),
    "its transpose": lambda x: x.t(),
    "a flat view": lambda x: x.view(-1),
}


def fill_tied(staged: bool, begins: bool) -> list[str]:
    """Return the ties of a target for which another source is not refused, or an equal one is."""
    wrong = []
    with meshkit.build_mesh(tp=2, ranks=[0, 1]) as source, meshkit.build_mesh(ranks=[2]) as target:
        for name, tie in TIES.items():
            if not (source.inside or target.inside):
                continue
            whole = (
                torch.tensor([[1, 2, 3, 4], [5, 6, float("nan"), -0.0]]).t().contiguous()
            )  # (4, 2)
            base = torch.zeros(4, 2)
            out = {"embed": base, "head": tie(base), "bias": torch.zeros(2)}
            globs = {"*": "... -> ..."}
            state = {"embed": whole, "head": tie(whole).clone(), "bias": torch.ones(2)}
            sync = source.transfer(
                globs, to=target, like=state if source.inside else out, staged=staged
            )
            for differs in (False, True, False):
                state["head"] = tie(whole + 1 if differs else whole).clone()
                held, filled = (state, None) if source.inside else (None, out)
                base.zero_()
                try:
                    sync.begin(held, out=filled).wait() if begins else sync(held, out=filled)
                except meshkit.MeshkitError as error:
                    if not differs or "head" not in str(error) or "embed" not in str(error):
                        wrong.append(f"{name}, {differs}: {error}")
                    if staged and target.inside and base.any():
                        wrong.append(f"{name}: filled in spite of the error")
                else:
                    if differs and (staged or target.inside):
                        wrong.append(f"{name}: two values for one tensor gave {base}")
                    if target.inside and not differs and not equal(base, whole):
                        wrong.append(f"{name}: {base}")
    return wrong


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("staged", [False, True])
def test_two_names_of_one_tensor_are_not_filled_with_two_values(
    staged: bool, begins: bool, pool: Pool
) -> None:
    assert pool.run(fill_tied, staged, begins) == [[]] * RANKS
