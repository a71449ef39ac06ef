"""Levels of hardware: labels as numbers, and that levels nest."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import SpecError
from meshkit.core.topology.level import Level, check_nested, name_domains, number_labels

law = settings(deadline=None, max_examples=60, database=None)
LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def level(name: str, of_node: list[int]) -> Level:
    return Level(name, np.array(of_node), name_domains(name, range(max(of_node) + 1)))


@law
@given(LABELS)
def test_labels_are_numbered_as_they_come(labels: list[int]) -> None:
    numbers, names = number_labels("rack", labels)
    order = [*dict.fromkeys(labels)]
    assert [order[number] for number in numbers] == labels
    assert numbers.dtype == np.int64
    assert names == tuple(f"rack {label}" for label in order)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["b", "a", "b"], ("b", "a")),
        ([np.int64(3)], ("rack 3",)),
        (["0", "1"], ("0", "1")),
        ([("pod", 1), 2], ("('pod', 1)", "2")),
        ([], ()),
    ],
)
def test_numbers_are_named_by_their_level_and_names_are_kept(
    labels: list[Hashable], names: tuple[str, ...]
) -> None:
    assert number_labels("rack", labels)[1] == names


@law
@given(LABELS, st.data())
def test_levels_nest_where_no_domain_is_torn(inner: list[int], data: st.DataObject) -> None:
    numbers = number_labels("rack", inner)[0].tolist()
    outer = data.draw(st.lists(st.integers(0, 2), min_size=len(inner), max_size=len(inner)))
    torn = any(
        a == b and x != y
        for a, x in zip(numbers, outer, strict=True)
        for b, y in zip(numbers, outer, strict=True)
    )
    inside = (level("rack", numbers),)
    if torn:
        line = r"the level 'pod' would split rack \d into several pods"
        with pytest.raises(SpecError, match=line):
            check_nested(level("pod", outer), inside)
    else:
        check_nested(level("pod", outer), inside)
    check_nested(level("pod", outer), ())
