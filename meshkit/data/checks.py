"""Compare the batches and the parameters of all ranks. Received bytes are never unpickled.

Parameters differ, for example, if DDP averages over dp alone on a mesh with sp. Buffers are left
out, since the statistics of a BatchNorm may differ until the next forward of DDP. A parameter with
``parameter.allreduce = False``, the mark of Megatron-core and DeepSpeed for experts, may differ
along ep.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from ..call import format_value, quotes_call
from ..errors import DisagreementError, MeshkitError, SpecError, text_of
from ..groups.groups import gather_bytes
from ..groups.live_mesh import LiveMesh
from ..groups.open_mesh import agree_in_mesh, agreement_of
from ..groups.registry import MeshGroups
from ..launch.tensors import is_dtensor
from ..layout.layout import Layout
from ..text import article, dtype_name, format_sizes
from . import conflicts as compare
from .batch import resolve_data_axes
from .canonical import MAX_SHOWN, canonical_text

Named = Sequence[tuple[str, torch.Tensor]]
PLAIN = int | float | str | bytes | bool | None
FSDP1 = "FullyShardedDataParallel"
CHUNK = 2**20  # elements that are widened to int64 at once
WORDS = {1: torch.uint8, 2: torch.int16}  # bytes of an element to the integers that replace it


@quotes_call("mesh.check_batch", by_name=("batch",))
def check_batch(  # noqa: D417  # self
    self: LiveMesh, batch: object, *, data: str | tuple[str, ...] | None = None
) -> None:
    """Check that ranks which share samples hold equal batches, and other ranks different ones.

    Collective over the mesh. The BatchError is the same on every rank, with the first key that
    differs. Pass the batch as it was read, before sp cuts the sequence, and no filler. Two data
    coordinates can hold equal batches by chance if the dataset repeats them.

    Args:
        batch: a tensor, or nested dicts, lists and tuples of tensors, int, float, str, bytes,
            bool and None. Dtype, shape and bytes are compared, not the device or the order of
            keys.
        data: the axes that divide the samples, as in :meth:`batch`.

    Cost: one gather of 265 bytes per rank, and one more if there is a conflict. Tensors are
    copied to the host and hashed there, a second or two per gigabyte.
    """
    mesh, layout = self._groups, self._groups.plan.layout
    mesh.check_usable()
    try:
        axes = resolve_data_axes(data, layout.sizes)
    except MeshkitError as refusal:
        announce_refusal(mesh, refusal, self.device)
        raise
    coordinate = layout.coordinate(mesh.rank)
    index = format_sizes({axis: coordinate.get(axis, 0) for axis in axes})
    holdings = gather_conflicting(mesh, list_batch(batch, index), self.device, distinct=True)
    if holdings and (error := compare.batch_conflict(layout, holdings)):
        raise error


@quotes_call("mesh.check_parameters", by_name=("model",))
def check_parameters(
    self: LiveMesh,
    model: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
    *,
    axes: str | tuple[str, ...] | None = None,
) -> None:
    """Check that parameters are equal on all ranks that average their gradients.

    Collective over the mesh, between steps. It finds replicas that drift. A module is compared
    without its buffers, which ``check_parameters(model.named_buffers())`` compares. A plain
    tensor must be equal along ``axes``, by default those of :meth:`gradient_group`. The
    placements of a DTensor say which ranks hold equal parts; :mod:`meshkit.data.checks` has the
    mark of experts.

    Raises:
        DisagreementError: the same on every rank, with the first parameter that differs in
            bytes, dtype, shape or placement. Also for a shard of FSDP1 or ZeRO-3.

    Cost: one gather of 265 bytes per rank, and one more if there is a conflict. Bytes are
    summed on the device of the parameter, in one pass.
    """
    mesh, layout = self._groups, self._groups.plan.layout
    mesh.collective_group(())  # raises on a rank outside the mesh, before the axes are resolved
    try:
        equal = compare.EqualAxes.of(layout.sizes, axes)
    except MeshkitError as refusal:
        announce_refusal(mesh, refusal, self.device)
        raise
    holdings = gather_conflicting(mesh, list_model(model, layout, mesh.rank, equal), self.device)
    if holdings and (error := compare.parameter_conflict(layout, equal, holdings)):
        raise error


@quotes_call("mesh.agree")
def agree(self: LiveMesh, what: str, value: object) -> None:
    """Compare a value over all ranks of the mesh: a learning rate, a set of names, a config.

    Collective over the mesh, on the host, without a process group. ``what`` is the name of the
    value in one line. Values are compared by their ``repr``, without the order in sets, dicts,
    namespaces and dataclasses at any depth; arrays and tensors exactly, whatever their device.

    Raises:
        SpecError: on all ranks, if a part of the value has no ``repr`` but its address, as a
            function or an object of a plain class; if it is a module with weights.
        DisagreementError: if the values differ, with the value of each rank.

    Cost: 4 store operations per rank. Large arrays are copied to the host and hashed.
    """
    mesh, job = self._groups, self._proposal.job
    mesh.check_usable()
    if not (isinstance(what, str) and what.isprintable()):
        fix = 'a name in one line before the value, for example "learning rate".'
        shown = format_value(what, article(type(what).__name__))
        error = SpecError(f"what is {shown}, not the name of a value.", fix=fix)
        if agreement := agreement_of(mesh, job, "mesh.agree", ""):
            agreement.fail(error)  # the other ranks wait for this one
        raise error
    try:
        text, cause = canonical_text(value, tensor_text), None
    except Exception as error:  # a value can raise anything, and the others wait for this rank
        text, cause = f"no repr, but {type(error).__name__}", error
    facts, summary = {what: text}, f"ranks disagree about {what}."
    if conflict := mesh.registry.conflict:
        facts["batches"] = conflict
    agree_in_mesh(mesh, job, "mesh.agree", facts, summary)
    if cause is not None:
        line = f"the value of {what} cannot be compared: {str(cause).partition(chr(10))[0]}"
        fix = "a value with a repr, such as vars(config), or the name of a function."
        if isinstance(cause, MeshkitError) and cause.fix:
            fix = cause.fix
        raise SpecError(line, fix=fix) from cause


def gather_conflicting(
    mesh: MeshGroups, own: compare.Holdings, device: torch.device, *, distinct: bool = False
) -> dict[int, compare.Holdings]:
    """Return what each rank holds, if digests conflict; else an empty dict. Collective.

    Raises:
        DisagreementError: if a rank refuses its call; on all ranks.
    """
    group = mesh.collective_group(())
    heads = gather_bytes(own.head(), compare.HEAD_BYTES, group, device)
    if not compare.heads_conflict(heads, distinct=distinct):
        return {}
    sizes = [compare.details_length(head) for head in heads]
    rows = gather_bytes(own.packed(), max(sizes), group, device)
    packed = [row[:size] for row, size in zip(rows, sizes, strict=True)]
    ranks = [int(rank) for rank in mesh.plan.layout.grid.flat]  # in the order of the group
    held = dict(zip(ranks, map(compare.Holdings.unpacked, packed), strict=True))
    if refusals := {rank: each.refusal for rank, each in held.items() if each.refusal}:
        raise compare.refused_error(refusals)
    return held


def announce_refusal(mesh: MeshGroups, error: Exception, device: torch.device) -> None:
    """Let the other ranks, which wait in a gather, know why this one refuses. Collective."""
    text = f"{type(error).__name__}: {(text_of(error).splitlines() or [''])[0]}"
    with suppress(DisagreementError):  # the error of the other ranks
        gather_conflicting(mesh, compare.Holdings((), (), refusal=text), device)


def list_batch(batch: object, index: str) -> compare.Holdings:
    """Return the leaves of a batch; with a fault as text if the batch is unreadable. Local."""
    rows, path = [], "batch"
    try:
        for path, leaf in _leaves("batch", batch):
            if not isinstance(leaf, torch.Tensor | PLAIN):
                return compare.Holdings((), (index,), f"{path} is {article(type(leaf).__name__)}")
            rows.append(compare.Row(index, path, _describe_leaf(leaf)))
    except Exception as error:  # the peers wait in the gather, so this rank must join it
        return compare.Holdings((), (index,), _describe_fault(path, error))
    return compare.Holdings(tuple(rows), (index,))


def _leaves(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield every leaf with its path; an empty container is a leaf, so that it is compared too."""
    if not isinstance(value, Mapping | list | tuple):
        yield path, value
        return
    if not value:
        yield path, f"empty {type(value).__name__}"
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _leaves(f"{path}[{canonical_text(key)}]", item)


def _describe_leaf(leaf: object) -> str:
    """Return the description of a leaf with a digest: ``int64 (2, 8) 9f86d081...``."""
    if not isinstance(leaf, torch.Tensor):
        return f"{type(leaf).__name__} {_digest(repr(leaf).encode())}"
    flat = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten()
    content = flat.view(torch.uint8).numpy()
    return f"{dtype_name(leaf.dtype)} {tuple(leaf.shape)} {_digest(content.data)}"


def tensor_text(value: object) -> str | None:
    """Return the exact text of a tensor, whatever its device; None for any other value.

    Raises:
        SpecError: for a module with weights, which its ``repr`` leaves out.
    """
    if isinstance(value, nn.Module) and [*value.parameters(), *value.buffers()]:
        line = f"{article(type(value).__name__)} has weights, which its repr leaves out."
        raise SpecError(line, fix="mesh.check_parameters(model); or repr(model), without weights.")
    if not isinstance(value, torch.Tensor):
        return None
    if isinstance(value, nn.UninitializedParameter | nn.UninitializedBuffer):
        return repr(value)
    kind = type(value).__name__ if type(value) not in (torch.Tensor, nn.Parameter) else "tensor"
    if parts := _parts_of_tensor(value):
        return f"{kind}({', '.join(canonical_text(part, tensor_text) for part in parts)})"
    tensor = value.detach().as_subclass(torch.Tensor)
    if tensor.is_meta:
        return f"{kind}({dtype_name(tensor.dtype)} {tuple(tensor.shape)} meta)"
    if not 0 < tensor.numel() <= MAX_SHOWN:
        return f"{kind}({_describe_leaf(tensor)})"
    return f"{kind}({tensor.tolist()}, dtype={dtype_name(tensor.dtype)})"


def _parts_of_tensor(value: Any) -> list[object]:  # noqa: ANN401
    """Return what a tensor consists of if it has no elements in memory by itself; else nothing."""
    if is_dtensor(value):
        return [value.to_local(), repr(value.placements)]
    if hasattr(type(value), "__tensor_flatten__"):
        names, context = value.__tensor_flatten__()
        return [*(getattr(value, name) for name in names), context]
    if value.is_nested:
        return [*value.unbind()]
    if value.is_mkldnn:
        return [value.to_dense()]
    if value.layout is torch.sparse_coo:
        value = value.coalesce()
        return [value.indices(), value.values(), tuple(value.shape)]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [value.crow_indices(), value.col_indices(), value.values(), tuple(value.shape)]
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [value.ccol_indices(), value.row_indices(), value.values(), tuple(value.shape)]
    return []


def _digest(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def list_model(
    model: object, layout: Layout, rank: int, axes: compare.EqualAxes
) -> compare.Holdings:
    """Return parameters or buffers; with a fault as text if one is unreadable. Local."""
    forms = [f"form {_coordinate_without(layout, rank, a)}" for a in (axes.dense, axes.experts)]
    classes = tuple(dict.fromkeys(forms))
    rows: list[compare.Row] = []
    name = "the model"
    try:
        modules = model.modules() if isinstance(model, nn.Module) else ()
        if any(type(module).__name__ == FSDP1 for module in modules):
            return compare.Holdings((), classes, f"{FSDP1} holds flat shards of the parameters")
        for name, parameter in name_parameters(model):
            if hasattr(parameter, "ds_tensor"):
                return compare.Holdings((), classes, f"{name} is partitioned by stage 3 of ZeRO")
            # Megatron-core and DeepSpeed mark the parameters of experts in this way
            is_expert = getattr(parameter, "allreduce", True) is False
            equal = axes.experts if is_expert else axes.dense
            kind, part, local = _read_parameter(parameter, layout, rank, equal)
            about = is_expert, "parameter" if isinstance(parameter, nn.Parameter) else "buffer"
            rows.append(compare.Row(forms[is_expert], name, kind, *about))
            rows.append(compare.Row(f"bytes {part}", name, f"{kind} {fingerprint(local)}", *about))
    except Exception as error:  # the peers wait in the gather, so this rank must join it
        return compare.Holdings((), classes, _describe_fault(name, error))
    return compare.Holdings(tuple(rows), classes)


def name_parameters(parameters: object) -> Named:
    """Return parameters with their names, each parameter once."""
    unique: dict[int, tuple[str, Any]] = {}
    for name, value in name_tied_parameters(parameters):
        unique.setdefault(id(value), (name, value))
    return [*unique.values()]


def name_tied_parameters(parameters: object) -> Named:
    """Return parameters with their names, a tied one with each of its names."""
    if isinstance(parameters, nn.Module):
        return [*parameters.named_parameters(remove_duplicate=False)]
    pairs = parameters.items() if isinstance(parameters, Mapping) else parameters
    named: list[Any] = [None]
    if isinstance(pairs, Iterable) and not isinstance(pairs, torch.Tensor):
        named = [*pairs]
    for pair in named:
        is_pair = type(pair) is tuple and len(pair) == 2
        if not is_pair or not isinstance(pair[0], str) or not isinstance(pair[1], torch.Tensor):
            kind = article(type(parameters).__name__)
            line = f"the parameters are {format_value(parameters, kind)}, without names."
            raise SpecError(line, fix="a module, or model.named_parameters().")
    return named


def _read_parameter(
    parameter: Any,  # noqa: ANN401  # a Parameter or a DTensor
    layout: Layout,
    rank: int,
    equal: tuple[str, ...],
) -> tuple[str, str, torch.Tensor]:
    """Return the form of a parameter, the class with the same part of it, and its local tensor."""
    kind = f"{dtype_name(parameter.dtype)} {tuple(parameter.shape)}"
    if not is_dtensor(parameter):
        return kind, _coordinate_without(layout, rank, equal), parameter
    kind += f" {' '.join(map(str, parameter.placements))}"
    mesh, names = parameter.device_mesh, parameter.device_mesh.mesh_dim_names
    split = [dim for dim, kind in enumerate(parameter.placements) if not kind.is_replicate()]
    index: Any = mesh.get_coordinate()
    select = tuple(index[dim] if dim in split else slice(None) for dim in range(mesh.ndim))
    replicas = {*mesh.mesh[select].flatten().tolist()}  # the ranks with the same part
    part = format_sizes({names[dim] if names else f"dim {dim}": index[dim] for dim in split})
    along = [axis for axis in layout.axes if replicas >= {*layout.peers(rank, axis).tolist()}]
    share = f"{_coordinate_without(layout, rank, (*equal, *along))}; {part}"
    return kind, share, parameter.to_local()


def _coordinate_without(layout: Layout, rank: int, axes: tuple[str, ...]) -> str:
    coordinate = layout.coordinate(rank)
    return format_sizes({axis: index for axis, index in coordinate.items() if axis not in axes})


def _describe_fault(name: str, error: Exception) -> str:
    reason = (str(error).splitlines() or [""])[0][:100]
    return f"{name} cannot be read ({type(error).__name__}: {reason})"


def fingerprint(tensor: torch.Tensor) -> str:
    """Return 16 hexadecimal digits that depend on every byte of a tensor, and not on its device.

    Each chunk gives the sum of its elements times fixed odd factors, modulo 2**64. Sums of integers
    are exact, so their order does not matter. Cost: one pass over the tensor, 17 MB of memory.
    """
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
    # the factors lose the highest bit of an int64, so that wide elements become int32
    words = plain.view(WORDS.get(plain.element_size(), torch.int32))
    factors = _odd_factors(min(CHUNK, len(words)), words.device)
    sums = [(part * factors[: len(part)]).sum() for part in torch.split(words, CHUNK) if len(part)]
    return _digest(torch.stack(sums).cpu().numpy().tobytes() if sums else b"")


def _odd_factors(count: int, device: torch.device) -> torch.Tensor:
    """Return distinct odd numbers without a pattern: int64 (count,), by the mix of splitmix64."""
    mixed = torch.arange(1, count + 1, device=device) * -7046029254386353131
    mixed = (mixed ^ (mixed >> 30)) * -4658895280553007687
    mixed = (mixed ^ (mixed >> 27)) * -7723592293110705685
    return (mixed ^ (mixed >> 31)) | 1
