"""Errors as JSON in the store."""

from __future__ import annotations

import pytest

import meshkit
from meshkit.core.errors import LaunchError, MeshkitError
from meshkit.launch.store.error_json import error_from_json, error_to_json


@pytest.mark.parametrize(
    "error",
    [
        LaunchError("one", "evidence é", fix="something."),
        meshkit.DisagreementError("two", requests={3: "seed=1", 0: "seed=2"}),
        MeshkitError("three"),
        meshkit.RankTimeoutError("four", missing_ranks=(2, 5)),
        meshkit.CollectiveError("five", missing_ranks=(1,), behind=(3, 4)),
    ],
)
def test_an_error_is_the_same_after_json(error: MeshkitError) -> None:
    read = error_from_json(error_to_json(error))
    assert (type(read), str(read)) == (type(error), str(error))
    assert vars(read) == vars(error)


def test_an_unknown_class_becomes_a_meshkit_error() -> None:
    assert type(error_from_json('{"error": "SystemExit", "text": "x"}')) is MeshkitError
