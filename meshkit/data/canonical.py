"""Text of a value that is equal on all ranks if the values are equal.

The ``repr`` of a set depends on the hash seed of the process, that of a dict on the order in which
its keys were added, and that of an array leaves digits and elements out. Here sets and dicts are
sorted, at any depth, and arrays are exact::

    {"b": 2, "a": {3, 1}}          {'a': {1, 3}, 'b': 2}

A class with a ``repr`` of its own is compared by it, and by its elements if it is an array for
NumPy. It is asked of a copy whose plain sets and dicts are sorted, if the class can be copied.
The fields of dataclasses, attrs and pydantic that are shown, and the columns of pandas, are
compared one by one.
"""

from __future__ import annotations

import hashlib
import re
from argparse import Namespace
from array import array
from collections import Counter, OrderedDict, UserDict, UserString, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import FunctionType, GeneratorType, MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from ..errors import SpecError
from ..text import article

MAX_SHOWN = 16  # elements of an array that are shown; a larger one is shown by its digest

TextOf = Callable[[Any], "str | None"]


def canonical_text(value: object, text_of: TextOf = lambda _: None) -> str:
    """Return the ``repr`` of a value, with sets and dicts in sorted order and arrays in full.

    ``text_of`` returns the text of a part if it knows a better one, else None.

    Raises:
        SpecError: if a part has no ``repr`` but its address, which is another one on each rank.
    """
    return _Writer(text_of).write(value)


def array_text(values: np.ndarray[Any, Any], write: Callable[[Any], str] = canonical_text) -> str:
    """Return the exact elements of an array, or its shape if there are many or none.

    A digest has the bits of elements that are not shown, and those of each NaN. The numbers of
    masked elements do not count.
    """
    mask, dtype = "", values.dtype
    if isinstance(values, np.ma.MaskedArray):
        mask = f", mask={array_text(np.ma.getmaskarray(values))}"
        zero: Any = np.zeros((), dtype)[()]
        values = values.filled(zero)
    is_shown = 0 < values.size <= MAX_SHOWN
    has_objects = dtype.hasobject
    text = write(values.tolist()) if is_shown or has_objects else ""
    shown, digest = text if is_shown else f"shape={[*values.shape]}", ""
    if not is_shown or (dtype.kind in "fc" and np.isnan(values).any()):
        content = text.encode() if has_objects else np.ascontiguousarray(values).tobytes()
        digest = f", sha256={hashlib.sha256(content).hexdigest()[:16]}"
    return f"array({shown}, dtype={dtype}{digest}{mask})"


class _SortedSet(set[Any]):
    """A set of a copy that is shown: it goes through its elements in the order of their texts."""

    def __init__(self, text: str, items: Sequence[Any]) -> None:
        super().__init__(items)
        self._text, self._items = text, items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __repr__(self) -> str:
        return self._text


class _Text:
    """A part whose text is known."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


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
        if kind in PLAIN:
            return repr(value)
        own: Any = kind.__repr__
        if own in ADDRESSES:
            line = f"{article(kind.__qualname__)} has no repr but its address."
            raise SpecError(line, fix="its vars(), or its name.")
        root = _module_of(own).partition(".")[0]  # empty for numpy's classes of C
        if isinstance(value, np.ndarray) and root in ("", "numpy"):
            return array_text(value, self.write)
        if own in FORMS:
            return FORMS[own](self, value)
        if isinstance(value, EXACT):
            return repr(value)
        if named := _fields_of(value, own):
            return f"{kind.__qualname__}({self.write_fields(named)})"
        return self._write_other(value, _form_of(value, own))

    def _write_other(self, value: Any, form: Form | None) -> str:  # noqa: ANN401
        """Return the text of a class that is not known here."""
        if form:
            try:
                return form(self, value)
            except SpecError:
                raise
            except Exception:  # items that cannot be read now, as of some configs
                return self._write_own(value)
        text = self._write_own(value)
        if hasattr(type(value), "__array__"):  # its repr can leave elements out
            with suppress(Exception):
                text += f" with {array_text(np.asarray(value), self.write)}"
        return text

    def _write_own(self, value: Any) -> str:  # noqa: ANN401
        """Return the ``repr`` of another class, with its sets and dicts in sorted order."""
        text = repr(value)
        if ADDRESS.search(text) or hex(id(value)) in text.lower():
            line = f"{article(type(value).__qualname__)} has no repr without an address."
            raise SpecError(line, fix="its vars(), or its name.")
        if "{" in text:
            with suppress(Exception):  # a class that cannot be copied so keeps its text
                twin = self._sorted(value, {})
                text = text if twin is value else repr(twin)
        return text

    def _sorted(self, value: Any, copies: dict[int, Any]) -> Any:  # noqa: ANN401
        """Return a copy of a value whose plain sets and dicts are sorted by their texts."""
        kind, twin = type(value), copies.get(id(value))
        if twin is not None:
            return twin
        if kind is dict:
            copies[id(value)] = twin = {}
            for key in sorted(value, key=self.write):
                twin[key] = self._sorted(value[key], copies)
        elif kind in (set, frozenset):
            twin = _SortedSet(self.write(value), sorted(value, key=self.write))
        elif kind is list:
            copies[id(value)] = twin = []
            twin.extend(self._sorted(part, copies) for part in value)
        elif kind is tuple:
            twin = tuple(self._sorted(part, copies) for part in value)
        elif _is_copied(value):
            copies[id(value)] = twin = object.__new__(kind)
            for name, part in vars(value).items():
                vars(twin)[name] = self._sorted(part, copies)
        else:
            twin = value
        copies[id(value)] = twin
        return twin

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

    def write_sequence(self, value: Sequence[object]) -> str:
        """Return the text of a sequence or a record of a class without its own form."""
        items = (value[i] for i in range(len(value)))  # some never end when they are iterated
        return f"{type(value).__qualname__}({self.write_list(items)})"

    def write_pandas(self, value: Any) -> str:  # noqa: ANN401
        """Return the text of a table, a series or an index of pandas."""
        parts = [(name, getattr(value, name)) for name in LABELS if hasattr(value, name)]
        if hasattr(value, "columns"):
            columns = [value.iloc[:, i] for i in range(len(value.columns))]
            parts += [("values", [_column_of(column) for column in columns])]
        else:
            parts += [("names", [*getattr(value, "names", ())]), ("values", _column_of(value))]
        return f"{type(value).__qualname__}({self.write_fields(parts)})"

    def write_tuple(self, value: Sequence[object]) -> str:
        """Return the text of a tuple."""
        return f"({self.write_list(value)[1:-1]}{',' * (len(value) == 1)})"

    def write_fields(self, pairs: Iterable[tuple[str, object]]) -> str:
        """Return the texts of values behind their names."""
        return ", ".join(f"{name}={self.write(part)}" for name, part in pairs)


Form = Callable[[_Writer, Any], str]
ADDRESSES = {kind.__repr__ for kind in (object, FunctionType, GeneratorType)}
KINDS: list[tuple[Form, list[Any]]] = [
    (_Writer.write_dict, [dict]),
    (_Writer.write_named_dict, [Counter, UserDict, defaultdict, MappingProxyType]),
    (lambda w, v: f"{type(v).__name__}({w.write_list(v.items())})", [OrderedDict]),
    (_Writer.write_set, [set, frozenset, type({}.keys()), type({}.items())]),
    (_Writer.write_list, [list]),
    (_Writer.write_tuple, [tuple]),
    (lambda w, v: f"{type(v).__name__}({w.write_list(v)})", [deque, type({}.values())]),
    (
        lambda w, v: f"{type(v).__name__}({w.write_fields(sorted(vars(v).items()))})",
        [Namespace, SimpleNamespace],
    ),
    (lambda w, v: f"<{type(v).__name__}.{v.name}: {w.write(v.value)}>", [Enum]),
    (lambda w, v: type(v).__qualname__ + w.write_tuple((v.func, v.args, v.keywords)), [partial]),
    (lambda w, v: type(v).__name__ + w.write_tuple(v.args), [BaseException]),
]
# by the repr of the class: a class of the user with another one is compared by that
FORMS: dict[object, Form] = {kind.__repr__: form for form, kinds in KINDS for kind in kinds}
PLAIN = {int, float, bool, type(None), complex, str, bytes}
# classes whose own repr is exact
EXACT = (str, UserString, bytes, bytearray, range, array, np.generic)
# containers of C and of KNOWN modules are shown by their parts
ABSTRACT: list[tuple[Form, Any]] = [
    (_Writer.write_named_dict, Mapping),
    (_Writer.write_set, AbstractSet),
    (_Writer.write_sequence, (Sequence, tuple)),
]
KNOWN = {"collections", "omegaconf", "tensordict", "torch"}
LABELS = ("index", "columns", "name")  # of a table or a series beside its values
ADDRESS = re.compile(r"<(?:[^<>]|<\w+>)* at 0x[0-9a-f]{6,}", re.IGNORECASE)


def _form_of(value: object, own: Any) -> Form | None:  # noqa: ANN401
    """Return how a container of C or of another library is shown; None for a class of the user."""
    root = _module_of(own).partition(".")[0]
    if root == "pandas" and hasattr(type(value), "__array__"):
        return _Writer.write_pandas
    if isinstance(own, FunctionType) and root not in KNOWN:
        return None
    return next((form for form, kinds in ABSTRACT if isinstance(value, kinds)), None)


def _module_of(own: Any) -> str:  # noqa: ANN401
    module = getattr(own, "__module__", "")
    return module if isinstance(module, str) else ""


def _column_of(part: Any) -> list[object]:  # noqa: ANN401
    """Return what a column of pandas holds: its elements, and its dtype with all categories."""
    dtype = part.dtype
    kept = [getattr(dtype, name) for name in ("categories", "ordered") if hasattr(dtype, name)]
    return [str(dtype), *kept, np.asarray(part)]


def _is_copied(value: Any) -> bool:  # noqa: ANN401
    """Tell whether a value is an object of a plain class with a repr of its own."""
    kind: Any = type(value)
    is_plain = isinstance(kind.__repr__, FunctionType) and kind.__new__ is object.__new__
    return is_plain and not hasattr(kind, "__del__") and hasattr(value, "__dict__")


def _fields_of(value: Any, own: Any) -> list[tuple[str, Any]]:  # noqa: ANN401
    """Return the fields with which a class shows its values; none of a class of another kind."""
    kind, module = type(value), _module_of(own)
    if isinstance(value, tuple) and module == "collections":  # a namedtuple
        return [*zip(kind._fields, value, strict=True)]
    if is_dataclass(kind) and hasattr(own, "__wrapped__"):  # the repr that dataclass makes
        return [(f.name, getattr(value, f.name)) for f in fields(kind) if f.repr]
    if getattr(own, "__code__", None) and own.__code__.co_filename.startswith("<attrs generated"):
        shown = [a for a in kind.__attrs_attrs__ if a.repr and hasattr(value, a.name)]
        parts = [getattr(value, a.name) for a in shown]
        return [
            (a.name, _Text(a.repr(part)) if callable(a.repr) else part)  # a password is "***"
            for a, part in zip(shown, parts, strict=True)
        ]
    if module.startswith("pydantic.") and hasattr(kind, "__repr_args__"):
        return [(str(name), part) for name, part in value.__repr_args__()]
    return []
