"""Text of a value that is equal on all ranks if the values are equal.

The ``repr`` of a set depends on the hash seed of the process, that of a dict on the order in which
its keys were added, and that of an array leaves digits and elements out. Here sets and dicts are
sorted, at any depth, and arrays are exact::

    {"b": 2, "a": {3, 1}}          {'a': {1, 3}, 'b': 2}
"""

from __future__ import annotations

import hashlib
from argparse import Namespace
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import FunctionType, GeneratorType, MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from ..errors import SpecError
from ..text import article

MAX_SHOWN = 16  # elements of an array that are shown; a larger one is shown by its digest

TextOf = Callable[[Any], "str | None"]


def canonical_text(value: object, text_of: TextOf = lambda _: None) -> str:
    """Return the ``repr`` of a value, with sets and dicts in sorted order and arrays in full.

    Args:
        value: any value.
        text_of: returns the text of a part if it knows a better one, else None.

    Raises:
        SpecError: if a part has no ``repr`` but its address, which is another one on each rank.
    """
    return _Writer(text_of).write(value)


def array_text(kind: str, values: np.ndarray[Any, Any], dtype: object) -> str:
    """Return the exact elements of an array, or its shape if there are many or none.

    A digest has the bits of elements that are not shown, and those of each NaN.
    """
    is_shown = 0 < values.size <= MAX_SHOWN or values.dtype.hasobject
    shown = canonical_text(values.tolist()) if is_shown else f"shape={[*values.shape]}"
    digest = ""
    if not is_shown or (values.dtype.kind in "fc" and np.isnan(values).any()):
        digest = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]
        digest = f", sha256={digest}"
    return f"{kind}({shown}, dtype={dtype}{digest})"


class _Writer:
    """The text of one value; it remembers the containers around the current part."""

    def __init__(self, text_of: TextOf) -> None:
        self._text_of = text_of
        self._open: list[object] = []

    def write(self, value: object) -> str:
        """Return the text of a part."""
        if any(value is around for around in self._open):
            return "..."  # a container inside itself
        self._open.append(value)
        try:
            text = self._text_of(value)
            return self._write(value) if text is None else text
        finally:
            self._open.pop()

    def _write(self, value: Any) -> str:  # noqa: ANN401
        kind: Any = type(value)
        own: Any = kind.__repr__
        if own in ADDRESSES:
            line = f"{article(kind.__qualname__)} has no repr but its address."
            raise SpecError(line, fix="its vars(), or its name.")
        if isinstance(value, np.ndarray):
            return array_text("array", value, value.dtype)
        if own in FORMS:
            return FORMS[own](self, value)
        if isinstance(value, tuple) and own.__module__ == "collections":  # of a namedtuple
            named = [*zip(kind._fields, value, strict=True)]
        elif is_dataclass(kind) and hasattr(own, "__wrapped__"):  # the repr that dataclass makes
            named = [(f.name, getattr(value, f.name)) for f in fields(kind) if f.repr]
        else:
            return repr(value)
        return f"{kind.__qualname__}({self._named(named)})"

    def write_dict(self, value: Mapping[object, object]) -> str:
        """Return the text of a dict, sorted."""
        pairs = sorted(f"{self.write(key)}: {self.write(part)}" for key, part in value.items())
        return f"{{{', '.join(pairs)}}}"

    def write_named_dict(self, value: Mapping[object, object]) -> str:
        """Return the text of a dict of another class."""
        return f"{type(value).__name__}({self.write_dict(value)})"

    def write_set(self, value: Collection[object]) -> str:
        """Return the text of a set, sorted."""
        items = f"{{{', '.join(sorted(map(self.write, value)))}}}" if value else ""
        return items if items and type(value) is set else f"{type(value).__name__}({items})"

    def write_list(self, value: Iterable[object]) -> str:
        """Return the text of a list."""
        return f"[{', '.join(map(self.write, value))}]"

    def write_tuple(self, value: Sequence[object]) -> str:
        """Return the text of a tuple."""
        return f"({self.write_list(value)[1:-1]}{',' * (len(value) == 1)})"

    def write_named_list(self, value: Iterable[object]) -> str:
        """Return the text of a sequence of another class."""
        return f"{type(value).__name__}({self.write_list(value)})"

    def write_ordered(self, value: Mapping[object, object]) -> str:
        """Return the text of a dict for which the order of keys counts."""
        return f"{type(value).__name__}({self.write_list(value.items())})"

    def write_namespace(self, value: object) -> str:
        """Return the text of a namespace, sorted."""
        return f"{type(value).__name__}({self._named(sorted(vars(value).items()))})"

    def _named(self, pairs: Iterable[tuple[str, object]]) -> str:
        return ", ".join(f"{name}={self.write(part)}" for name, part in pairs)


Form = Callable[[_Writer, Any], str]
ADDRESSES = {kind.__repr__ for kind in (object, FunctionType, GeneratorType)}
KINDS: list[tuple[Form, list[Any]]] = [
    (_Writer.write_dict, [dict]),
    (_Writer.write_named_dict, [Counter, UserDict, defaultdict, MappingProxyType]),
    (_Writer.write_ordered, [OrderedDict]),
    (_Writer.write_set, [set, frozenset, type({}.keys())]),
    (_Writer.write_list, [list]),
    (_Writer.write_tuple, [tuple]),
    (_Writer.write_named_list, [deque, type({}.values()), type({}.items())]),
    (_Writer.write_namespace, [Namespace, SimpleNamespace]),
]
# a class of the user with a repr of its own keeps that
FORMS: dict[object, Form] = {kind.__repr__: form for form, kinds in KINDS for kind in kinds}
