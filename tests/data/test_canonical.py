"""The text of a value: equal for equal values, in every process and in every order of keys."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import threading
import time
from collections import (
    ChainMap,
    Counter,
    OrderedDict,
    UserDict,
    UserList,
    UserString,
    defaultdict,
    deque,
    namedtuple,
)
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import SpecError
from meshkit.data.canonical import canonical_text
from meshkit.data.checks import tensor_text

quick = settings(deadline=None, max_examples=200, database=None)

leaves = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.floats(allow_nan=False)
)
hashables = st.recursive(
    leaves, lambda inner: st.frozensets(inner, max_size=4) | st.tuples(inner, inner), max_leaves=6
)
values = st.recursive(
    hashables | st.sets(hashables, max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(hashables, inner, max_size=4),
    max_leaves=12,
)


def rebuilt(value: Any, order: Any) -> Any:
    """Return an equal value whose keys and elements were added in another order."""
    if isinstance(value, dict):
        pairs = [(rebuilt(k, order), rebuilt(v, order)) for k, v in value.items()]
        return dict(order(pairs))
    if isinstance(value, (set, frozenset)):
        return type(value)(order([rebuilt(item, order) for item in value]))
    if isinstance(value, (list, tuple)):
        return type(value)(rebuilt(item, order) for item in value)
    return value


@quick
@given(values, st.randoms(use_true_random=False))
def test_equal_values_have_equal_texts(value: Any, random: Any) -> None:
    other = rebuilt(value, lambda items: random.sample(items, len(items)))
    assert other == value
    assert canonical_text(other) == canonical_text(value)


@quick
@given(values, values)
def test_different_values_have_different_texts(first: Any, second: Any) -> None:
    if first != second:
        assert canonical_text(first) != canonical_text(second)


@quick
@given(st.lists(leaves) | st.tuples(leaves, st.tuples(leaves)) | st.sets(leaves, max_size=1))
def test_a_value_without_sets_and_dicts_has_its_repr(value: Any) -> None:
    assert canonical_text(value) == repr(value)


@dataclass
class Config:
    """A configuration with a set."""

    names: set[str]
    rates: dict[str, float] = field(default_factory=dict)


class Point(NamedTuple):
    """A pair with a set in it."""

    x: Any
    y: Any


class Own(dict):  # type: ignore[type-arg]
    """A dict whose repr is its own."""

    def __repr__(self) -> str:
        return "Own!"


class Shown:
    """A class whose repr shows its sets and dicts, also those of an object of its own."""

    def __init__(self, names: Any, inner: Any = None) -> None:
        self.names, self.inner, self.rank = names, inner, os.getpid()

    def __repr__(self) -> str:
        return f"Shown({self.names}, {' '.join(map(str, self.names))}, {self.inner!r})"


def members(letters: Any) -> Any:
    """Return a member of an enum whose value is a set."""
    return Enum("Group", {"ALL": frozenset(letters)}).ALL  # type: ignore[attr-defined]


Pair = namedtuple("Pair", "a b")
LETTERS = [*"gabdecf"]
FORWARDS, BACKWARDS = {c: {c, "z"} for c in LETTERS}, {c: {"z", c} for c in LETTERS[::-1]}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (FORWARDS, BACKWARDS),
        (MappingProxyType(FORWARDS), MappingProxyType(BACKWARDS)),
        (UserDict(FORWARDS), UserDict(BACKWARDS)),
        (Counter(LETTERS), Counter(LETTERS[::-1])),
        (defaultdict(set, FORWARDS), defaultdict(set, BACKWARDS)),
        (argparse.Namespace(**FORWARDS), argparse.Namespace(**BACKWARDS)),
        (SimpleNamespace(**FORWARDS), SimpleNamespace(**BACKWARDS)),
        (Config({*LETTERS}, {"a": 1, "b": 2}), Config({*LETTERS[::-1]}, {"b": 2, "a": 1})),
        (Point({*LETTERS}, FORWARDS), Point({*LETTERS[::-1]}, BACKWARDS)),
        (Pair(FORWARDS, 1), Pair(BACKWARDS, 1)),
        (deque([FORWARDS]), deque([BACKWARDS])),
        (FORWARDS.keys(), BACKWARDS.keys()),
        (OrderedDict(a=FORWARDS), OrderedDict(a=BACKWARDS)),
        (np.array([FORWARDS, None]), np.array([BACKWARDS, None])),
        (Own(FORWARDS), Own(BACKWARDS)),
        (ChainMap(FORWARDS, {"a": 1}), ChainMap(BACKWARDS, {"a": 1})),
        (UserString("ab"), UserString("ab")),
        (UserList([FORWARDS]), UserList([BACKWARDS])),
        (FORWARDS.items(), BACKWARDS.items()),
        (ValueError({*LETTERS}), ValueError({*LETTERS[::-1]})),
        (partial(sorted, FORWARDS), partial(sorted, BACKWARDS)),
        (Shown({*LETTERS}, FORWARDS), Shown({*LETTERS[::-1]}, BACKWARDS)),
        (Shown([], Shown((), [FORWARDS])), Shown([], Shown((), [BACKWARDS]))),
        (torch.Size([2, 3]), torch.zeros(2, 3).shape),
        (time.gmtime(0), time.gmtime(0)),
        (np.ma.array([1.0, 2.0], mask=[0, 1]), np.ma.array([1.0, 3.0], mask=[0, 1])),
    ],
)
def test_containers_of_every_kind(first: Any, second: Any) -> None:
    assert canonical_text(first) == canonical_text(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),  # not equal in Python either
        ([1, 2], (1, 2)),
        ({1}, frozenset({1})),
        ({}, set()),
        ((1,), 1),
        (1, True),
        (Fraction(1, 3), Fraction(1, 2)),
        (np.array([0.1]), np.array([0.1 + 1e-12])),  # the repr shows 8 digits
        (np.zeros(5000), np.append(np.zeros(4000), np.ones(1000))),  # and no middle
        (np.zeros(3), np.zeros(3, dtype=np.float32)),
        (np.zeros((2, 20)), np.zeros((20, 2))),
        (np.zeros((0, 3)), np.zeros((0, 5))),
        (Config({"a"}), Config({"b"})),
        (Shown({"a"}), Shown({"b"})),
        (torch.Size([2, 3]), torch.Size([3, 2])),
        (members("ab"), members("ac")),
        (np.ma.array(np.zeros(50), mask=[0] * 50), np.ma.array(np.zeros(50), mask=[0] * 49 + [1])),
        (np.array([{1}, None] * 20), np.array([{2}, None] * 20)),
    ],
)
def test_values_that_differ(first: Any, second: Any) -> None:
    assert canonical_text(first) != canonical_text(second)


def test_a_container_inside_itself_has_a_text() -> None:
    items: list[Any] = [1]
    items.append({"self": items})
    assert canonical_text(items) == "[1, {'self': ...}]"


def test_the_text_does_not_depend_on_the_hash_seed() -> None:
    code = """
from meshkit.data.canonical import canonical_text
from enum import Enum
print(canonical_text([{"a", "b", "c", "d"}, {("x", frozenset("pqrs")): frozenset("ab")}]))
print(canonical_text(Enum("Group", {"ALL": frozenset("abcd")}).ALL))
"""
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert texts == {
        "[{'a', 'b', 'c', 'd'}, {('x', frozenset({'p', 'q', 'r', 's'})): frozenset({'a', 'b'})}]\n"
        "<Group.ALL: frozenset({'a', 'b', 'c', 'd'})>\n"
    }


class WithoutRepr:
    """A class whose instances are shown by their address."""


@pytest.mark.parametrize(
    "value",
    [
        *(WithoutRepr(), {"a": [WithoutRepr()]}, lambda: 0, (n for n in ())),
        *(WithoutRepr().__init__, [].append, threading.Lock(), np.random.default_rng(0)),
        *(partial(lambda: 0), io.BytesIO(), Shown([WithoutRepr()])),
    ],
    ids=[
        *("object", "deep", "function", "generator", "method", "method of C", "lock"),
        *("random numbers", "partial", "file", "own repr"),
    ],
)
def test_a_value_that_is_shown_by_its_address_has_no_text(value: object) -> None:
    """No two ranks have equal addresses, so equal values would differ."""
    with pytest.raises(SpecError, match="address"):
        canonical_text(value)


@pytest.mark.parametrize("size", [1, 16, 17])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_the_bits_of_a_nan_and_the_sign_of_zero_count_in_arrays_of_every_size(
    size: int, dtype: str
) -> None:
    texts = set()
    for last in (np.nan, -np.nan, 0.0, -0.0):
        array = np.zeros(size, dtype)
        array[-1] = last
        texts.add(canonical_text(array))
        assert canonical_text(array.copy()) == canonical_text(array)
    assert len(texts) == 4


class Table:
    """A table as other libraries have it: its repr leaves rows out."""

    def __init__(self, values: Any, index: Any = ()) -> None:
        self.values, self.index = values, index

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.values, dtype)

    def __repr__(self) -> str:
        return "0 ... 99"


def test_values_that_a_repr_leaves_out_count() -> None:
    ones, other = np.ones(100), np.ones(100)
    other[50] = 2
    assert canonical_text(Table(ones)) == canonical_text(Table(ones.copy()))
    assert canonical_text(Table(ones)) != canonical_text(Table(other))


def test_the_repr_of_a_class_decides_what_counts_of_it() -> None:
    first, second = Shown({"a"}), Shown({"a"})
    second.rank += 1
    assert canonical_text(first) == canonical_text(second)


class Schedule(Sequence):  # type: ignore[type-arg]
    """A sequence without an end when it is iterated, whose repr shows what counts."""

    def __init__(self, interval: int) -> None:
        self.interval = interval

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        return index

    def __repr__(self) -> str:
        return f"Schedule(interval={self.interval})"


class Quantity(Table):
    """Numbers with a unit."""

    def __repr__(self) -> str:
        return f"Quantity({self.index})"


class Tagged(dict):  # type: ignore[type-arg]
    """A dict whose repr shows its order and an attribute."""

    tag = ""

    def __repr__(self) -> str:
        return f"Tagged({[*self]}, {self.tag})"


class TaggedList(list):  # type: ignore[type-arg]
    """A list whose repr shows an attribute."""

    tag = ""

    def __repr__(self) -> str:
        return f"TaggedList({self.tag})"


class TaggedTuple(tuple):  # type: ignore[type-arg]
    """A tuple whose repr shows an attribute."""

    tag = ""

    def __repr__(self) -> str:
        return f"TaggedTuple({self.tag})"


class TaggedArray(np.ndarray):  # type: ignore[type-arg]
    """An array whose repr shows an attribute and no element, as a unit of astropy."""

    tag = ""

    def __repr__(self) -> str:
        return f"TaggedArray({self.tag})"


def tagged(value: Any, tag: str) -> Any:
    """Return a value with a tag."""
    value.tag = tag
    return value


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Schedule(10), Schedule(20)),
        (Quantity([1.0], "m"), Quantity([1.0], "km")),
        (Quantity([1.0], "m"), Quantity([2.0], "m")),
        (tagged(np.ones(40).view(TaggedArray), "m"), tagged(np.ones(40).view(TaggedArray), "km")),
        (np.ones(40).view(TaggedArray), np.zeros(40).view(TaggedArray)),
        (Tagged(a=1, b=2), Tagged(b=2, a=1)),
        *((tagged(kind(), "a"), tagged(kind(), "b")) for kind in (Tagged, TaggedList, TaggedTuple)),
    ],
)
def test_what_the_repr_of_the_user_shows_of_a_container_counts(first: Any, second: Any) -> None:
    assert canonical_text(first) != canonical_text(second)


def test_a_sequence_of_another_library_is_read_to_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Schedule.__repr__, "__module__", "torch.utils")
    assert canonical_text(Schedule(1)) == "Schedule([0, 1])"


class Said:
    """A class whose repr is a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Registry(Tagged):
    """A dict of functions by name."""

    def __repr__(self) -> str:
        return f"Registry({sorted(self)})"


class Nameless:
    """A class that was made without a module."""

    def __repr__(self) -> str:
        return "Nameless()"


Nameless.__repr__.__module__ = None  # type: ignore[assignment]


def test_a_repr_that_can_be_compared_is_the_text() -> None:
    assert canonical_text(Registry(relu=lambda: 0)) == "Registry(['relu'])"
    text = "<b>register</b> at 0xdeadbeef"
    assert canonical_text(Said(text)) == text
    assert canonical_text(Nameless()) == "Nameless()"
    said = Said("")
    said.text = f"Said at {id(said):#X}"
    with pytest.raises(SpecError, match="without an address"):
        canonical_text(said)


def test_arrays_of_records_and_of_tensors_have_a_text() -> None:
    dtype = [("a", int), ("b", float)]
    first, second, other = (
        np.ma.array([(1, hidden), (3, b)], dtype=dtype, mask=[(0, 1), (0, 0)])
        for hidden, b in ((1.0, 4.0), (2.0, 4.0), (1.0, 5.0))
    )
    assert canonical_text(first) == canonical_text(second) != canonical_text(other)
    texts = []
    for last in (1.0, 2.0):
        items = np.empty(2, object)
        items[0] = torch.tensor([1.0, last], requires_grad=True)
        texts.append(canonical_text(items, tensor_text))
    assert texts[0] != texts[1]


def test_tensors_without_elements_in_memory_have_a_text() -> None:
    assert canonical_text(torch.nn.UninitializedParameter(), tensor_text)
    assert canonical_text(torch.nn.UninitializedBuffer(), tensor_text)
    ones, other = torch.ones(2000), torch.ones(2000)
    other[1000] = 2
    texts = [canonical_text(t.to_mkldnn(), tensor_text) for t in (ones, ones.clone(), other)]
    assert texts[0] == texts[1] != texts[2]


class Hiding:
    """A class whose repr shows a set, and not what else it has."""

    def __init__(self, names: Any, hidden: Any) -> None:
        self.names, self.hidden = names, hidden

    def __repr__(self) -> str:
        return f"Hiding({self.names})"


def test_hidden_lists_that_share_parts_are_copied_once() -> None:
    for kind in (list, tuple):
        hidden: Any = kind()
        for _ in range(40):
            hidden = kind([hidden, hidden])
        assert canonical_text(Hiding({1}, hidden)) == "Hiding({1})"


@pytest.mark.parametrize("hidden", [Counter("ab"), ValueError("no")])
def test_a_part_that_cannot_be_copied_keeps_the_sets_beside_it_sorted(hidden: Any) -> None:
    names = Hiding({*LETTERS}, hidden), Hiding({*LETTERS[::-1]}, hidden)
    expected = f"Hiding({{{', '.join(map(repr, sorted(LETTERS)))}}})"
    assert [canonical_text(each) for each in names] == [expected] * 2


def test_a_repr_that_raises_is_called_once() -> None:
    calls = []

    class Raising:
        def __repr__(self) -> str:
            calls.append(1)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        canonical_text(Raising())
    assert len(calls) == 1


def test_attrs_that_are_unset_or_secret() -> None:
    attrs = pytest.importorskip("attrs")

    @attrs.define
    class Login:
        names: Any
        password: str = attrs.field(repr=lambda _: "***")
        token: str = attrs.field(init=False)

    first, second = Login({*LETTERS}, "abc"), Login({*LETTERS[::-1]}, "xyz")
    assert canonical_text(first) == canonical_text(second)
    assert "password=***" in canonical_text(first)


def test_types_of_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Settings(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        url: pydantic.HttpUrl  # type: ignore[name-defined]
        key: pydantic.SecretStr  # type: ignore[name-defined]
        names: set[str]

    text = canonical_text(Settings(url="http://a.b/", key="hidden", names={*LETTERS}))
    assert "hidden" not in text
    assert "http://a.b/" in text
    assert "{'a', 'b', 'c'" in text


def test_configs_of_omegaconf() -> None:
    create = pytest.importorskip("omegaconf").OmegaConf.create
    assert canonical_text(create({"a": 1, "b": [2]})) == canonical_text(create({"b": [2], "a": 1}))
    assert canonical_text(create({"a": "???"})) == "{'a': '???'}"


def test_tables_of_pandas() -> None:
    pd = pytest.importorskip("pandas")
    big = 2**53

    def table(last: int, **columns: Any) -> Any:
        rows = [*range(99), last]
        return pd.DataFrame({"i": rows, "f": [0.5] * 100, "s": ["a"] * 100} | columns)

    several = pd.MultiIndex.from_product([[1, 2], ["a"]], names=["x", "y"])
    texts = [
        table(big),
        table(big + 1),
        table(big, s=pd.Categorical(["a"] * 100)),
        table(big, s=pd.Categorical(["a"] * 100, categories=["a", "b"])),
        table(big).set_index("s"),
        table(big).rename(columns={"i": "j"}),
        *(pd.Series([1, 2], name=name) for name in ("a", "b")),
        *(pd.Series([1, 2], dtype=dtype) for dtype in ("Int64", "float32")),
        *(pd.Categorical(["a"], categories=each) for each in (["a"], ["a", "b"])),
        *(several, several.set_names("z", level=1), pd.Series([1, None], dtype="Int64")),
        *(pd.Timestamp(0), pd.Timestamp(1)),
    ]
    assert len({*map(canonical_text, texts)}) == len(texts)
    assert canonical_text(table(big)) == canonical_text(table(big).copy())
