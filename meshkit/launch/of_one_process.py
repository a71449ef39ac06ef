"""Copies of objects that hold process groups, which belong to one process."""

from __future__ import annotations

from typing import TypeVar

from ..errors import MeshkitError
from ..text import article

Held = TypeVar("Held", bound="OfOneProcess")


class OfOneProcess:
    """Base of the classes that hold process groups: a copy is the object itself.

    So ``copy.deepcopy(model)`` copies the weights of a model, and the copy communicates over the
    same groups. An object that is pickled raises, also inside a model that ``torch.save`` writes.
    """

    __slots__ = ()

    def __copy__(self: Held) -> Held:
        return self

    def __deepcopy__(self: Held, memo: object) -> Held:
        return self

    def __reduce__(self) -> str | tuple[object, ...]:
        """Refuse to pickle the object, because its process groups cannot be pickled."""
        raise MeshkitError(
            f"{article(type(self).__name__.lstrip('_'))} cannot be pickled, because its process "
            "groups belong to one process.",
            fix="mesh.position, which knows the rank and the layout. Save models with "
            "torch.save(model.state_dict(), path).",
        )


def keep_whole(kind: type[Held]) -> type[Held]:
    """Let ``dataclasses.asdict`` of an object around it share an instance. For a dataclass.

    It takes the instances of all dataclasses apart, down to the process groups.
    """
    del kind.__dataclass_fields__  # type: ignore[attr-defined]
    return kind
