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
    assert canonical_text(Table(ones, [1])) != canonical_text(Table(ones, [2]))


def test_the_repr_of_a_class_decides_what_counts_of_it() -> None:
    first, second = Shown({"a"}), Shown({"a"})
    second.rank += 1
    assert canonical_text(first) == canonical_text(second)
