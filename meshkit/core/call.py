"""A call as its caller wrote it, so that an error can quote it and a fix can be typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np


def format_value(value: object) -> str:
    """``repr``, cut short where a list of ranks would fill the screen.

    Example:
        >>> format_value(np.int64(9)), format_value(list(range(100)))
        ('9', '[0, 1, ..., 99]')
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str | range) and len(value) > 8:
        return f"[{value[0]!r}, {value[1]!r}, ..., {value[-1]!r}]"
    return repr(value)


class Word(str):
    """What stands for an object in the text of a call: ``mesh``, where its repr says little.

    Example:
        >>> print(Call("Mpu", (Word("mesh"),)))
        Mpu(mesh)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Call:
    """A function name and the arguments it was given.

    Args:
        name: the function, as it is called: ``"build_mesh"``.
        args: positional arguments. A mapping among them holds sizes.
        kwargs: keyword arguments, in the order written.

    Example:
        >>> call = Call("build_mesh", kwargs={"dp": 4, "sp": 2, "tp": 1})
        >>> print(call)
        build_mesh(dp=4, sp=2, tp=1)
        >>> print(call.but(dp=None, order="sp dp tp"))
        build_mesh(sp=2, tp=1, order='sp dp tp')
    """

    name: str
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        args = [format_value(value) for value in self.args]
        kwargs = [f"{name}={format_value(value)}" for name, value in self.kwargs.items()]
        return f"{self.name}({', '.join(args + kwargs)})"

    def but(self, **changes: object) -> Call:
        """The same call with some arguments changed, added, or (None) left out."""
        args = tuple(self._edited(value, changes) for value in self.args)
        inside = {key for value in self.args if isinstance(value, Mapping) for key in value}
        rest = {key: value for key, value in changes.items() if key not in inside}
        kwargs = {**self.kwargs, **rest}
        return replace(self, args=args, kwargs={k: v for k, v in kwargs.items() if v is not None})

    @staticmethod
    def _edited(value: object, changes: Mapping[str, object]) -> object:
        if not isinstance(value, Mapping):
            return value
        merged = {key: changes.get(key, old) for key, old in value.items()}
        return {key: new for key, new in merged.items() if new is not None}


def drop_none(**options: object) -> dict[str, object]:
    """The options that were given: those that are not None."""
    return {name: value for name, value in options.items() if value is not None}
