"""The warning while no name server answers."""

from __future__ import annotations

import threading
import time
import warnings
from dataclasses import replace

import pytest

import meshkit
from meshkit.launch.rendezvous import slow_names
from meshkit.launch.rendezvous.slow_names import warning_of_slow_names

WORLD = replace(
    meshkit.detect({"RANK": "0", "WORLD_SIZE": "2"}), init_method="tcp://127.0.0.1:29500"
)


def warnings_of(
    monkeypatch: pytest.MonkeyPatch, rank: int, lookup: float, start: float
) -> list[str]:
    """Return the warnings of a start of some seconds, if a look-up takes some seconds."""
    monkeypatch.setattr(slow_names, "PATIENCE", 0.1)
    monkeypatch.setattr(slow_names, "ANSWER_TIME", 0.1)
    monkeypatch.setattr(slow_names, "look_up", lambda host: time.sleep(lookup))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with warning_of_slow_names(replace(WORLD, rank=rank)):
            time.sleep(start)
    return [str(warning.message) for warning in caught]


def test_rank_0_warns_while_the_start_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = warnings_of(monkeypatch, 0, 2.0, 1.5)
    assert "no name server answers" in text
    assert "export RES_OPTIONS=attempts:0" in text


@pytest.mark.parametrize(("rank", "lookup", "start"), [(1, 2.0, 0.8), (0, 0.0, 0.8), (0, 2.0, 0.0)])
def test_other_ranks_answered_names_and_fast_starts_give_no_warning(
    rank: int, lookup: float, start: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warnings_of(monkeypatch, rank, lookup, start) == []
    assert "meshkit-names" not in {thread.name for thread in threading.enumerate()}


def test_the_name_of_this_machine_is_looked_up_without_an_error() -> None:
    slow_names.look_up("127.0.0.1")
    slow_names.look_up("no such host")
