"""The calls that torch's flight recorder has kept, of gloo as they are and of NCCL as in torch."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit.launch.disagreement import TracedCall
from meshkit.launch.torch_traces import (
    LAST,
    RECORDS,
    group_entries,
    last_calls,
    parse_entries,
    read_calls,
)
from tests.laws.derivations import law
from tests.pool import Pool

RANKS = 2
STATES = ["begun", "started", "completed"]


def entry(record: int, name: str, group: str = "1", **more: Any) -> dict[str, Any]:
    """Return a call as torch writes it into its record."""
    known = {
        "record_id": record,
        "process_group": [group, "mesh dp"],
        "collective_seq_id": record + 1,
        "p2p_seq_id": 0,
        "op_id": record + 1,
        "profiling_name": name,
        "input_sizes": [[4, 8]],
        "input_dtypes": ["Float"],
        "state": "scheduled",
        "retired": False,
        "time_created_ns": record,
    }
    return {**known, **more}


def parse(entries: list[dict[str, Any]], ranks: list[int]) -> list[TracedCall]:
    return parse_entries(group_entries([entries])["1"], ranks)


def test_this_torch_has_the_records_that_are_read() -> None:
    """A build without CUDA has no record of NCCL."""
    needed = RECORDS if dist.is_nccl_available() else RECORDS[:1]
    assert all(hasattr(torch._C._distributed_c10d, name) for name in needed)


@pytest.mark.parametrize(
    "record", ["no JSON", "[]", '{"entries": [{"process_group": []}]}', '{"entries": 1}']
)
def test_a_record_of_another_format_is_unknown(
    monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    """A report of a hang does not fail by what a newer torch writes."""
    recorder = torch._C._distributed_c10d
    monkeypatch.setattr(recorder, "_dump_fr_trace_json", lambda **_: record, raising=True)
    group: Any = SimpleNamespace(group_name="1")
    assert read_calls({"dp": group}, {"dp": 0}) == {}


def test_a_record_without_an_entry_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = torch._C._distributed_c10d
    monkeypatch.delattr(recorder, "_dump_fr_trace_json", raising=True)
    assert read_calls({}, {}) == {}


def test_the_state_and_the_tensors_of_a_call() -> None:
    calls = parse(
        [
            entry(0, "nccl:all_reduce", state="completed"),
            entry(1, "gloo:all_reduce", retired=True),
            entry(2, "nccl:_all_gather_base", state="started", input_dtypes=["BFloat16"]),
            entry(3, "gloo:barrier", input_sizes=[], input_dtypes=[]),
            entry(4, "gloo:all_to_all"),
            entry(5, "nccl:all_reduce", input_sizes=[[1]] * 6, input_dtypes=["Bool"] * 6),
        ],
        [0, 1],
    )
    assert [call.state for call in calls] == ["completed"] * 2 + ["started"] + ["begun"] * 3
    assert [call[:3] for call in calls[2:5]] == [
        (3, "all_gather_into_tensor", (((4, 8), "bfloat16"),)),
        (4, "barrier", ()),
        (5, "all_to_all", ()),  # its tensors may differ between ranks
    ]
    assert calls[5].content == ", ".join(["[1] bool"] * 4) + ", and 2 more"


def test_the_messages_of_a_batch_have_its_state_and_count_from_the_first_one() -> None:
    messages = [
        entry(0, "nccl:send 1->0", collective_seq_id=0, p2p_seq_id=1, state="completed"),
        entry(1, "nccl:send 1->0", collective_seq_id=0, p2p_seq_id=2),
        entry(2, "nccl:recv 1<-0", collective_seq_id=0, p2p_seq_id=2),
        entry(3, "nccl:coalesced", collective_seq_id=0, p2p_seq_id=2, state="started"),
    ]
    expected = [(1, "send", "completed"), (2, "send", "started"), (1, "recv", "started")]
    calls = parse(messages, [5, 7])
    assert [(call.number, call.name, call.state) for call in calls] == expected
    assert {call.peer for call in calls} == {5}
    dropped = parse([{**each, "record_id": each["record_id"] + 9} for each in messages], [5, 7])
    assert [call.number for call in dropped] == [0, 0, 0]


def test_the_calls_of_an_earlier_group_of_the_same_name_are_left_out() -> None:
    first = [entry(i, "gloo:all_reduce") for i in range(3)]
    again = [entry(i + 3, "gloo:barrier", collective_seq_id=i + 1, op_id=i + 1) for i in range(2)]
    assert [call[:2] for call in parse(first + again, [0])] == [(1, "barrier"), (2, "barrier")]


def test_calls_of_two_records_have_one_order() -> None:
    gloo = [entry(i, "gloo:all_reduce", "1", time_created_ns=t) for i, t in enumerate([5, 20])]
    nccl = [entry(i, "nccl:all_reduce", "2", time_created_ns=t) for i, t in enumerate([1, 9])]
    by_name = group_entries([gloo, nccl, []])
    orders = {name: [c.order for c in parse_entries(e, [0])] for name, e in by_name.items()}
    assert orders == {"1": [2, 4], "2": [1, 3]}


@law
@given(st.lists(st.tuples(st.sampled_from(STATES), st.booleans()), max_size=30))
def test_the_last_calls_and_the_first_open_ones_are_kept(made: list[tuple[str, bool]]) -> None:
    calls = [
        TracedCall(name="send" if is_message else "all_reduce", state=state, order=i)
        for i, (state, is_message) in enumerate(made)
    ]
    kept = last_calls(calls)
    assert [*kept] == [call for call in calls if call in kept]
    for number, call in enumerate(calls):
        later = [other for other in calls[number + 1 :] if other.is_message == call.is_message]
        earlier = [other for other in calls[:number] if other.is_open]
        assert (call in kept) == (len(later) < LAST or (call.is_open and len(earlier) < LAST))


def record_an_open_call() -> Any:
    """Begin a call over an axis that the other rank begins a second later, and read the record."""
    mesh = meshkit.build_mesh(dp=2, timeout={"dp": 60})
    other = dist.new_group([0, 1])
    group, x = mesh.group("dp"), torch.ones(4, 8)
    dist.all_reduce(x, group=group)
    if mesh.rank == 0:
        dist.send(x, 1, group=group)
    else:
        dist.recv(x, 0, group=group)
        time.sleep(1)
    before = read_calls({"dp": group, "": group, "tp": other, "x": other}, {"tp": 0, "x": 1})
    work = dist.all_gather_into_tensor(torch.ones(8, 8), x, group=group, async_op=True)
    during = read_calls({"dp": group}, {})
    assert work is not None
    work.wait()
    time.sleep(0.2)  # the thread of gloo notes the end after the caller goes on
    after = read_calls({"dp": group}, {})
    mesh.close()
    dist.destroy_process_group(other)
    named = sorted(before.items())
    return [[[*call] for call in calls["dp"]] for calls in (before, during, after)], named


def test_gloo_records_collectives_and_their_ends_but_no_messages(pool: Pool) -> None:
    (before, during, after), named = pool.run(record_an_open_call)[0]
    assert [axes for axes, _ in named] == ["dp", "tp"]
    assert named[1][1] == ()  # nothing was begun; of "x" something was, and it is unknown
    assert [call[:3] for call in before][-1] == [1, "all_reduce", (((4, 8), "float32"),)]
    assert before[-1][5] == "completed"
    assert during[-1][:3] == [2, "all_gather", (((4, 8), "float32"),)]
    assert (during[-1][5], after[-1][5]) == ("begun", "completed")
    assert during[-1][6] == before[-1][6] + 1
