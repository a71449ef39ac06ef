"""Compare the calls of the ranks of a group: their patterns, sizes and dtypes must be equal.

Tensors of different sizes end a process in gloo, without an error of Python, and NCCL returns
garbage. If a gradient flows on some ranks only, these wait for the others in the backward. So
before a tensor moves, the ranks of its group reduce a digest of the call, and the negative of the
digest, to the largest of each. Only if all calls are equal, their sum is zero::

    gloo   compare ... | move                                   each rank raises, and nothing moves
    NCCL   compare | move | ... | next call, commit, guard ends  each rank raises, before its step

On NCCL no rank waits for the comparison inside a guard. It runs before the move on the same group.
The result is copied to the host beside other work, and a later call reads the copy. Ranks may find
a difference in different calls, so they exchange the texts of their calls in the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import DisagreementError, MeshkitError
from ..groups.groups import gather_bytes
from ..groups.registry import MeshGroups
from ..groups.status import check_pending, compares_calls, in_collective, pending
from ..launch.device import backend_for, nccl_parts
from ..launch.disagreement import describe_disagreement
from ..launch.job import require_job
from ..launch.of_one_process import OfOneProcess
from ..launch.process import check_own_process
from ..launch.times import TIMES, Deadline
from ..launch.torch_aborts import timeout_of, wait_in_time
from ..launch.torch_groups import backend_of
from ..text import format_sizes, name_ranks

MAX_FACTS = 3 * 256  # bytes of a call that ranks show each other
MAX_FIELD = 200  # bytes of its pattern, and of its sizes; the dtype is shorter
FIELDS = ("call", "sizes", "dtype", "grad", "error")  # the last of a rank that refuses the call
NONE = "none"  # in place of a field
SAME_ORDER = "the same calls in the same order on all ranks of the group, "
SAME_ORDER += "with equal sizes and dtypes."


def compare_calls(
    groups: MeshGroups,
    group: dist.ProcessGroup,
    x: Tensor,
    facts: str,
    *,
    has_backward: bool = True,
) -> bool:
    """Raise on every rank of a group if its ranks make different calls.

    Calls are compared inside a guard with a timeout, and outside it the first call over each group;
    on gloo and nccl only. Inside a guard on nccl, a later call raises, see above. While a CUDA
    graph is captured nothing is compared.

    Cost: an all-reduce of 16 bytes over the group, for which the rank waits unless it is on nccl
    inside a guard.

    Args:
        groups: the groups of the mesh.
        group: the one over which the tensor moves.
        x: the local tensor, whose dtype and ``requires_grad`` are compared too.
        facts: the call and the global sizes as text, equal on all ranks.
        has_backward: whether ranks wait for each other in the backward; else gradients may flow on
            some of them only.

    Returns:
        Whether this rank knows that all calls are equal.

    Raises:
        LaunchError: if this process is a fork of the rank, or a worker of a DataLoader.
        DisagreementError: if the calls differ, or on nccl those of an earlier call.
    """
    check_own_process(groups.rank, groups.pid)
    grad = ("no", "yes")[x.requires_grad] if has_backward else NONE
    return not x.is_meta and _compare(groups, group, x.device, f"{facts}; {x.dtype}; {grad}")


def _compare(
    groups: MeshGroups, group: dist.ProcessGroup, device: torch.device, whole: str
) -> bool:
    """Return whether this rank knows that all calls are equal; raise if it knows otherwise."""
    is_guarded, size = compares_calls(), group.size()
    if size == 1 or (group in groups.compared and not is_guarded):
        return False
    backend = backend_for(backend_of(group), device.type)
    on_nccl = is_late(backend)
    if not on_nccl and backend != "gloo":
        return False
    if on_nccl and (torch.compiler.is_compiling() or is_capturing(device)):
        return False
    groups.compared.add(group)
    number = int.from_bytes(hashlib.blake2b(whole.encode(), digest_size=7).digest(), "little")
    text = shorten_call(whole)
    device = device if on_nccl else torch.device("cpu")
    if on_nccl and is_guarded:
        check_pending()
        pending().append(Comparison.begin(text, number, group, device))
        return False
    ends = torch.tensor([number, -number], device=device)
    dist.all_reduce(ends, dist.ReduceOp.MAX, group)
    if sum(ends.tolist()):  # the largest is not the smallest
        raise differing_calls(group, text, device)
    return True


def differing_calls(
    group: dist.ProcessGroup, text: bytes, device: torch.device
) -> DisagreementError:
    """Return the error of ranks whose calls differ, from the text of each rank. Collective."""
    texts = gather_bytes(text, MAX_FACTS, group, device)
    ranks = dist.get_process_group_ranks(group)
    return describe_calls(dict(zip(ranks, texts, strict=True)), "call")


def compare_refusal(
    groups: MeshGroups, group: dist.ProcessGroup, x: object, call: str, error: MeshkitError
) -> bool:
    """Let the ranks of a group know, where they compare their calls, that this one refuses it.

    The others raise a :class:`DisagreementError` with the error of this rank. Nobody
    knows if no calls are compared, see :func:`compare_calls`. Return whether they know.
    """
    device = device_of(x)
    if device.type == "meta":
        return False
    try:
        _compare(groups, group, device, refused_call(call, error))
    except DisagreementError:  # this rank raises its own
        return True
    return False


def refused_call(call: str, error: MeshkitError) -> str:
    """Return the fields of a call that this rank refuses."""
    reason = f"{type(error).__name__}: {error.summary}".replace("; ", ", ")
    return "; ".join([call, NONE, NONE, NONE, reason])


def drop_idle_gradient(x: Tensor) -> Tensor:
    """Return a tensor, without ``requires_grad`` if no gradient flows, as in no_grad. Local."""
    return x.detach() if x.requires_grad and not torch.is_grad_enabled() else x


def device_of(x: object) -> torch.device:
    """Return the device of a tensor, or that of this rank in place of anything else. Local."""
    if isinstance(x, Tensor):
        return x.device
    return require_job().world.device or torch.device("cpu")


def shorten_call(whole: str) -> bytes:
    """Return a call as ranks show it to each other."""
    return "; ".join(map(shorten_field, whole.split("; "))).encode()


def shorten_field(field: str) -> str:
    """Return a field of a call as ranks show it: a long one ends with a digest of the whole."""
    content = field.encode()
    if len(content) <= MAX_FIELD:
        return field
    digest = hashlib.blake2b(content, digest_size=4).hexdigest()
    return f"{content[:MAX_FIELD].decode(errors='ignore')}... (digest {digest})"


@cache
def is_late(backend: str) -> bool:
    """Return whether a call returns before its work is done, as on nccl. Pure."""
    return bool(nccl_parts(backend))


def is_capturing(device: torch.device) -> bool:
    """Return whether the calls of this thread are captured in a graph of the device. Local."""
    module = torch.get_device_module(device)
    return hasattr(module, "is_current_stream_capturing") and module.is_current_stream_capturing()


def has_streams(device: torch.device) -> bool:
    """Return whether the work of a device runs beside the host, in streams."""
    return device.type != "cpu"


@cache
def side_stream(device: torch.device) -> Any:  # noqa: ANN401  # the type is that of the device
    """Return the stream on which results of comparisons are copied to the host."""
    return torch.get_device_module(device).Stream(device=device)


@dataclass(frozen=True, eq=False)
class Comparison(OfOneProcess):
    """The comparison of the calls of a group that no rank waits for."""

    text: bytes  # the call of this rank
    group: dist.ProcessGroup
    ends: Tensor  # on the host: the digest and its negative, later the largest of each  # (2,)
    work: dist.Work
    copied: Any  # the event after which they are on the host; None if the work was done there

    @classmethod
    def begin(
        cls, text: bytes, number: int, group: dist.ProcessGroup, device: torch.device
    ) -> Comparison:
        """Begin a comparison. Collective over the group."""
        host = torch.tensor([number, -number])
        if not has_streams(device):
            work: Any = dist.all_reduce(host, dist.ReduceOp.MAX, group, async_op=True)
            return cls(text, group, host, work, None)
        host = host.pin_memory()  # a copy from other memory would wait for the device
        ends = host.to(device, non_blocking=True)
        work = dist.all_reduce(ends, dist.ReduceOp.MAX, group, async_op=True)
        stream = side_stream(device)
        with torch.get_device_module(device).stream(stream):  # that of the caller does not wait
            work.wait()
            host.copy_(ends, non_blocking=True)
            copied = stream.record_event()
        ends.record_stream(stream)  # its memory is not used again before
        return cls(text, group, host, work, copied)

    def is_done(self) -> bool:
        """Return whether the result is on the host. Local."""
        done: bool = self.work.is_completed() if self.copied is None else self.copied.query()
        return done

    def check(self) -> None:
        """Wait until the comparison is done, and raise if the calls differ. Local.

        The wait ends at the timeout of the group at the latest, and at the abort of a guard.
        """
        if not self.is_done():
            with in_collective("wait", self.group):
                wait_in_time(self.work, self.group, timeout_of(self.group))
            if self.copied is not None:
                self.copied.synchronize()
        if sum(self.ends.tolist()) and not require_job().counts.is_aborted:
            error = describe_calls(self._exchange_texts(), "have called")
            error.for_all = True  # other ranks may wait in this move for ever
            raise error

    def _exchange_texts(self) -> dict[int, bytes]:
        """Return the call of each rank that answers in the store in time."""
        job, ranks = require_job(), dist.get_process_group_ranks(self.group)
        texts = {job.world.rank: self.text}
        if job.store is None:
            return texts
        # all ranks of the group, and no others, know these numbers
        name = "/".join([self.group.group_name, *map(str, self.ends.tolist())])
        store, deadline = job.store.part(f"unequal/{name}"), Deadline.after(TIMES.answer)

        def exchange() -> None:
            store.set(str(job.world.rank), self.text.decode(errors="replace"))
            for rank in ranks:
                if text := store.wait(str(rank), deadline, len(ranks)):
                    texts[rank] = text

        store.try_within(TIMES.answer + TIMES.store, exchange)
        job.counts.read_soon.append(partial(store.delete, str(job.world.rank)))
        return texts


def describe_calls(texts: Mapping[int, bytes], verb: str) -> DisagreementError:
    """Return the error of ranks whose calls differ, from the text of each rank that is known."""
    requests = {
        rank: dict(
            zip(FIELDS, text.rstrip(b"\0").decode(errors="replace").split("; "), strict=False)
        )
        for rank, text in sorted(texts.items())
    }
    by_rank = {rank: format_sizes(request) for rank, request in requests.items()}
    calls = {request["call"] for request in requests.values()}
    if len(requests) == 1:
        (rank,) = requests
        lines, fix = [f"Rank {rank} knows only its own call: {by_rank[rank]}."], SAME_ORDER
    else:
        lines, fix = describe_disagreement(requests, {}, ())
    if refusing := [rank for rank, request in requests.items() if "error" in request]:
        fix = f"look at the error of {name_ranks(refusing)} first."
    summary = "ranks make different calls over one group."
    if len(calls) == 1:
        summary = f"ranks {verb} {calls.pop()} with tensors that do not fit together."
    return DisagreementError(summary, *lines, fix=fix, requests=by_rank)
