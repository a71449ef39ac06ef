"""The compiler, gradients and data loaders of a program in torch's private API.

================================  =====  ====================================================
feature                           since  test
================================  =====  ====================================================
``_fsdp_param_groups``            2.13   tests/data/test_micro_batches.py
================================  =====  ====================================================
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch.autograd import forward_ad
from torch.utils.data import dataloader
from torch.utils.data._utils import worker

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


Function = TypeVar("Function", bound=Callable[..., object])
Sample = TypeVar("Sample")

_END = object()  # the end of a dataset
SMALL, JOINED = 2048, 32  # elements of a tensor, and tensors, whose norm is taken together


def mark_constant(function: Function) -> Function:
    """Let torch.compile call a method while it traces, and take the result as a constant.

    ``torch.compiler.assume_constant_result`` sets the same mark, but first imports the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def make_constant(value: Any) -> Any:  # noqa: ANN401
    """Return a value of which torch.compile takes an int as a constant, with a guard."""
    return len(range(value)) if isinstance(value, int) and value > 0 else value


def keep_uncompiled(function: Function) -> Function:
    """Let torch.compile run a function, and what it calls, as it is; its caller's graph ends there.

    ``torch.compiler.disable`` does the same, but first imports the compiler, which takes 1 s.
    """
    eval_frame: Any = torch._C._dynamo.eval_frame
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def has_dual_level() -> bool:
    """Return whether tensors may have tangents, in the time of one attribute."""
    return forward_ad._current_level >= 0


def foreach_norms(
    tensors: Sequence[torch.Tensor], order: float, *, joined: bool = False
) -> list[torch.Tensor]:
    """Return the norm of each tensor of one device and dtype, added up in float64.

    ``joined`` allows one norm for several tensors. On the CPU, small ones are then copied together,
    which takes half of the time.
    """
    plain = [tensor.abs() for tensor in tensors] if tensors[0].is_complex() else [*tensors]
    is_small = plain[0].device.type == "cpu" and max(map(torch.numel, plain)) <= SMALL
    if not joined or not is_small:
        return [*torch._foreach_norm(plain, order, torch.float64)]
    parts = (_join(plain[start : start + JOINED]) for start in range(0, len(plain), JOINED))
    return [torch.linalg.vector_norm(part, order, dtype=torch.float64) for part in parts]


def _join(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Copy tensors into one; those of one shape in half of the time."""
    try:
        return torch.stack(tensors)
    except RuntimeError:  # other shapes
        flatten: Callable[..., torch.Tensor] = torch._utils._flatten_dense_tensors
        return flatten(tensors)


def foreach_scale(tensors: Sequence[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply tensors of one device and dtype in place by a float64 number of shape ().

    A factor of the dtype of the tensors takes a third of the time of a float64 one.
    """
    dtype = torch.float64 if tensors[0].element_size() > 4 else torch.float32
    factor = factor.to(tensors[0].device, dtype)
    views = [tensor for tensor in tensors if tensor.is_conj() or tensor.is_neg()]
    for view in views:  # which foreach refuses
        view.mul_(factor)
    if len(views) < len(tensors):
        rest = [tensor for tensor in tensors if not (tensor.is_conj() or tensor.is_neg())]
        torch._foreach_mul_(rest, factor)


def keep_gradient_sync(module: FSDPModule) -> Callable[[], None]:
    """Return what restores whether a module under ``fully_shard`` synchronizes its gradients.

    torch has a public function that sets it, and none that reads it.
    """
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # before torch 2.13
        groups = [group for group in [state._fsdp_param_group] if group is not None]
    kept = [(group, group.reduce_grads, group.all_reduce_grads) for group in groups]

    def restore() -> None:
        for group, reduces, all_reduces in kept:
            group.reduce_grads, group.all_reduce_grads = reduces, all_reduces

    return restore


def iterate_unsplit(dataset: Iterable[Sample]) -> Iterator[Sample]:
    """Yield the samples of a dataset as if this were the only worker of a DataLoader.

    A dataset that splits itself by ``get_worker_info`` then yields all its samples in each worker.
    """
    with _as_only_worker():
        samples = iter(dataset)
    while True:
        with _as_only_worker():
            sample = next(samples, _END)
        if sample is _END:
            return
        yield sample  # type: ignore[misc]


@contextmanager
def _as_only_worker() -> Iterator[None]:
    """Let ``torch.utils.data.get_worker_info`` return worker 0 of 1 in a worker."""
    info = worker._worker_info
    if info is not None:
        own = worker.WorkerInfo(id=0, num_workers=1, seed=info.seed, dataset=info.dataset)
        worker._worker_info = own
    try:
        yield
    finally:
        worker._worker_info = info


def read_within(
    reader: weakref.ref[Any], context: Callable[[Any, Any], AbstractContextManager[None]]
) -> None:
    """Let a pass of a DataLoader read samples inside of ``context(dataset, indices)`` from now on.

    Harmless to repeat, and nothing while the pass is made, or if workers read.
    """
    iterator: Any = reader()
    fetcher = getattr(iterator, "_dataset_fetcher", None)
    if fetcher is not None and not isinstance(fetcher, _Fetcher):
        iterator._dataset_fetcher = _Fetcher(fetcher, context)


class _Fetcher(NamedTuple):
    """An object that reads the samples of a DataLoader, inside of a context."""

    fetcher: Any
    context: Callable[[Any, Any], AbstractContextManager[None]]

    def fetch(self, indices: Any) -> Any:  # noqa: ANN401
        """Return the collated samples."""
        with self.context(self.fetcher.dataset, indices):
            return self.fetcher.fetch(indices)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return a field of the object, which torchdata's loader puts into its state."""
        return getattr(self.fetcher, name)


def find_reader() -> weakref.ref[Any] | None:
    """Return the pass of a DataLoader that takes the indices of the caller, through any sampler.

    None if no DataLoader does. One that is reading a sample takes no indices. The pass holds the
    iterator of the sampler, which may hold the reference.
    """
    frame = inspect.currentframe()
    while frame := frame.f_back if frame else None:
        iterator = frame.f_locals.get("self")
        if isinstance(iterator, dataloader._BaseDataLoaderIter):
            reads_a_sample = frame.f_code.co_name == "_next_data"
            return None if reads_a_sample else weakref.ref(iterator)
    return None
