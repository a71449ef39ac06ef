"""Collectives of a benchmark: their outputs, and their times on each kind of device."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import meshkit
from meshkit.bench import calls
from meshkit.bench.calls import (
    expected_output,
    input_pattern,
    prepare_call,
    run_calls,
    time_calls,
)
from meshkit.bench.results import OPERATIONS

CPU = torch.device("cpu")


# ---------------------------------------------------------------- outputs


@pytest.mark.parametrize("members", [[0], [1, 3], [0, 2, 4, 6], [5, 40, 7]])
def test_expected_outputs_element_by_element(members: list[int]) -> None:
    ranks, part = len(members), 7
    items = ranks * part
    # whole[m, p, i]: item i of the part p of member m
    whole = np.array([[251 * (m % 31) + k % 251 for k in range(items)] for m in members])
    whole = whole.reshape(ranks, ranks, part)
    pieces = np.array([[251 * (m % 31) + k for k in range(part)] for m in members])
    for place in range(ranks):
        outputs = {
            "all_reduce": whole.sum(0),
            "all_gather": pieces,
            "reduce_scatter": whole[:, place].sum(0),
            "all_to_all": whole[:, place],
            "broadcast": whole[0],
            "send_recv": whole[(place - 1) % ranks],
        }
        assert outputs.keys() == OPERATIONS.keys()
        for op, numbers in outputs.items():
            expected = expected_output(op, members, place, items)
            assert expected.tolist() == numbers.reshape(-1).tolist()


def test_inputs_differ_between_ranks_and_positions_and_their_sum_is_exact() -> None:
    held = torch.stack([input_pattern(rank, 8, 251) for rank in range(31)])
    assert len(held.unique()) == 31 * 251
    members, whole = range(5, 16_384 + 5), torch.zeros(40)
    for rank in members:  # one after another: the order in which errors grow the most
        whole += input_pattern(rank, len(members), 40)
    assert whole.tolist() == expected_output("all_reduce", members, 0, 40).tolist()


def every_call() -> tuple[dict[tuple[str, str], int], dict[str, int]]:
    """Return the wrong elements of each call, and of each that was never made."""
    wrong, silent = {}, {}
    with meshkit.build_mesh(dp=3, sp=2) as mesh:
        for op in OPERATIONS:
            for axis in ("dp", "sp"):
                group = mesh.peers(axis).tolist(), 24, mesh.group(axis), CPU
                call = prepare_call(op, *group, checked=True)
                if axis == "dp" and not OPERATIONS[op].in_place:
                    silent[op] = call.num_wrong(mesh.rank)
                run_calls([call])
                wrong[op, axis] = call.num_wrong(mesh.rank)
        mesh.barrier()
    return wrong, silent


def test_every_call_is_correct_on_real_groups_and_one_never_made_is_wrong() -> None:
    for wrong, silent in meshkit.spawn(every_call, 6, timeout=60):
        assert wrong == {(op, axis): 0 for op in OPERATIONS for axis in ("dp", "sp")}
        assert silent == {"all_gather": 24, "reduce_scatter": 8, "all_to_all": 24, "send_recv": 24}


# ---------------------------------------------------------------- times


class Device:
    """A stand-in for an accelerator: its acts in order, and the second of its stream."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.acts: list[str] = []
        self.clock = 0.0
        patch.setattr(calls.torch, "Event", self.event)
        patch.setattr(calls, "synchronize", lambda _: self.acts.append("synchronize"))

    def call(self) -> None:
        self.acts.append("call")
        self.clock += 0.5 * len(self.acts)

    def event(self, device: torch.device, *, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        event = SimpleNamespace(at=None)

        def record() -> None:
            self.acts.append("event")
            event.at = self.clock

        event.record = record
        event.elapsed_time = lambda after: (after.at - event.at) * 1e3  # milliseconds
        return event


def test_on_cuda_events_are_read_once_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    took = time_calls(device.call, 1, 2, torch.device("cuda", 0))
    assert device.acts == ["call", "synchronize", "event", *["call", "event"] * 2, "synchronize"]
    assert took == pytest.approx([0.5 * 4, 0.5 * 6])


def test_on_another_accelerator_each_call_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    assert len(time_calls(device.call, 1, 2, torch.device("xpu", 0))) == 2
    assert device.acts == ["call", "synchronize", *["call", "synchronize"] * 2]
