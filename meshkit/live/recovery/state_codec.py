"""Write the state dict of a model or an optimizer as JSON and tensors, and read it again.

Nothing is pickled. Numbers, texts, None, lists, tuples and dicts stand in the JSON. A rank
sends its shard of a DTensor, and the reader finds the DeviceMesh among its own DTensors::

    {"step": tensor(3.), "betas": (0.9, 0.95)}
    {"dict": [["step", {"tensor": 0}], ["betas", {"tuple": [{"value": 0.9}, {"value": 0.95}]}]]}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.errors import SpecError
from ...core.text import article

Tree = dict[str, Any]  # a value as JSON
Templates = Mapping[tuple[str, ...], Any]  # dims and placements to a DTensor of this rank


def encode(value: object, tensors: list[Tensor], path: str = "state") -> Tree:
    """Return a value as JSON; append its tensors, of DTensors the shards of this rank.

    Raises:
        SpecError: for a value of another type, with its path.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, Mapping):
        items = [
            [_check_key(k, path), encode(v, tensors, f"{path}[{k!r}]")] for k, v in value.items()
        ]
        return {"dict": items}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [encode(v, tensors, f"{path}[{i}]") for i, v in enumerate(value)]}
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        raise _type_error(path, value)
    tree: Tree = {"tensor": len(tensors)}
    shard: Any = value
    if is_dtensor(value):
        tree |= {"key": _template_key(value), "shape": [*value.shape], "stride": [*value.stride()]}
        shard = shard.to_local()
    tensors.append(shard.detach())
    return tree


def decode(tree: Tree, tensors: Sequence[Tensor], templates: Templates) -> Any:  # noqa: ANN401
    """Return the value that :func:`encode` has written.

    Raises:
        SpecError: if no DTensor of this rank has the dims and placements of one in the JSON.
    """
    ((kind, content),) = ((k, v) for k, v in tree.items() if k not in ("key", "shape", "stride"))
    if kind == "value":
        return content
    if kind == "dict":
        return {key: decode(part, tensors, templates) for key, part in content}
    if kind in ("list", "tuple"):
        parts = [decode(part, tensors, templates) for part in content]
        return parts if kind == "list" else tuple(parts)
    if "key" not in tree:
        return tensors[content]
    return _join(tensors[content], tree, templates)


def dtensors_in(value: object) -> Iterator[Any]:
    """Yield the DTensors in a state dict."""
    if is_dtensor(value):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from dtensors_in(part)


def templates_of(states: object) -> dict[tuple[str, ...], Any]:
    """Return a DTensor of this rank for each DeviceMesh and its placements."""
    return {tuple(_template_key(tensor)): tensor for tensor in dtensors_in(states)}


def is_dtensor(value: object) -> bool:
    """Return whether a value is a DTensor; false without importing torch's package of it."""
    return isinstance(value, Tensor) and hasattr(value, "placements")


def _template_key(tensor: Any) -> list[str]:  # noqa: ANN401  # a DTensor, not imported
    names = tensor.device_mesh.mesh_dim_names or ()
    return [" ".join(names), *map(str, tensor.placements)]


def _join(shard: Tensor, tree: Tree, templates: Templates) -> Any:  # noqa: ANN401
    """Return the DTensor of a shard, on the DeviceMesh of this rank."""
    from torch.distributed.tensor import DTensor

    template = templates.get(tuple(tree["key"]))
    if template is None:
        dims, *placements = tree["key"]
        raise SpecError(
            f"no DTensor here has the dims {dims!r} with {', '.join(placements)}.",
            fix="build the model on the new mesh as on the old one, and restore it with its "
            "optimizer: mesh.recovery.restore(model, optimizer).",
        )
    return DTensor.from_local(
        shard,
        template.device_mesh,
        template.placements,
        run_check=False,
        shape=torch.Size(tree["shape"]),
        stride=tuple(tree["stride"]),
    )


def _check_key(key: object, path: str) -> object:
    if isinstance(key, bool) or not isinstance(key, int | str):
        raise _type_error(f"a key of {path}", key)
    return key


def _type_error(path: str, value: object) -> SpecError:
    return SpecError(
        f"{path} is {article(type(value).__name__)}.",
        "A state has dense tensors, numbers, texts, None, lists, tuples and dicts.",
        fix="restore a state_dict() of these types.",
    )
