"""The last calls over each group of this process, from torch's flight recorder.

torch keeps the last 2,000 collectives of a process in memory, of gloo and of NCCL in one record
each. Both are read through private functions, which this file looks for: without one of them, or
with ``TORCH_FR_BUFFER_SIZE=0``, the calls of that backend are unknown. So are all calls if a newer
torch writes another format, as no report may fail by that. The record says of each call whether it
has completed. On NCCL it says too whether the device has started it, and it has sends
and receives. On gloo a message leaves no record, and a call that failed counts as completed.
"""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..text import group_by
from .disagreement import UNEVEN_CALLS, TracedCall, TracedTensor

LAST = 4  # collectives over a group, messages, and the first open ones, that a status states
MOST_TENSORS = 4  # tensors of one call that a status states

# gloo and newer backends write into the first record, ProcessGroupNCCL into the second one
RECORDS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
_MESSAGE = re.compile(r"(\w+) (\d+)(->|<-)(\d+)")  # "send 0->1" of ranks of the group
# the names of NCCL's engine for public functions
_NAMES = {"_all_gather_base": "all_gather_into_tensor"}
_NAMES |= {"_reduce_scatter_base": "reduce_scatter_tensor"}
_DTYPES = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}

Entry = Mapping[str, Any]  # one call in the flight recorder


def read_calls(
    groups: Mapping[str, dist.ProcessGroup], begun: Mapping[str, int]
) -> dict[str, tuple[TracedCall, ...]]:
    """Return the last calls over each of these groups, by its axes. Local.

    ``begun``: how many collectives were begun over it, as far as known. A group is left out if it
    has some of which there is no record.

    Cost: 50 to 100 ms of processor time for 2,000 calls, in which no other thread runs. So only a
    rank that answers a roll call, or that has waited for half of a limit, reads them.
    """
    calls: dict[str, tuple[TracedCall, ...]] = {}
    try:
        by_name = group_entries(map(_read_record, RECORDS))
        for axes, group in groups.items():
            if axes and (entries := by_name.get(group.group_name)):
                ranks = dist.get_process_group_ranks(group)
                calls[axes] = last_calls(parse_entries(entries, ranks))
            elif axes and by_name and begun.get(axes) == 0:
                calls[axes] = ()
    except (AttributeError, LookupError, TypeError, ValueError):  # a record of another format
        return {}
    return calls


def _read_record(name: str) -> list[Entry]:
    """Return the calls of one record, the oldest first; none if this torch does not have it."""
    dump = getattr(torch._C._distributed_c10d, name, None)
    record = {} if dump is None else json.loads(dump(includeCollectives=True, onlyActive=False))
    return [*record.get("entries", ())]


def group_entries(records: Iterable[Sequence[Entry]]) -> dict[str, list[Entry]]:
    """Return the calls over each group by its name, each with its place among all calls.

    If a record has dropped its oldest calls, the places begin where it begins.
    """
    whole = [
        [{**entry, "whole": record[0]["record_id"] == 0} for entry in record] for record in records
    ]
    placed = enumerate(heapq.merge(*whole, key=lambda entry: entry["time_created_ns"]), 1)
    return group_by((entry["process_group"][0], {**entry, "place": n}) for n, entry in placed)


def parse_entries(entries: Iterable[Entry], ranks: Sequence[int]) -> list[TracedCall]:
    """Return the calls over one group, whose ranks are given in their order.

    torch records a batch as its calls, whose state it does not follow, and one more that has the
    state of all. A message has a number only if the record goes back to the first one. The calls of
    a group of an earlier job in this process, which may have the same name, are left out.
    """
    calls: list[tuple[TracedCall, tuple[int, int]]] = []
    messages: Counter[tuple[str, int]] = Counter()
    before = 0
    for entry in entries:
        text = str(entry["profiling_name"]).partition(":")[2]
        number = int(entry["collective_seq_id"])
        batch = number, int(entry["p2p_seq_id"])  # what the calls of one batch have in common
        is_done = entry["retired"] or entry["state"] == "completed"
        state = "completed" if is_done else "started" if entry["state"] == "started" else "begun"
        if text == "coalesced":
            for i in range(len(calls) - 1, -1, -1):
                if calls[i][1] != batch:
                    break
                calls[i] = calls[i][0]._replace(state=state), batch
            continue
        if entry["op_id"] <= before:
            calls.clear()
            messages.clear()
        name, peer, before = _NAMES.get(text, text), -1, entry["op_id"]
        if message := _MESSAGE.fullmatch(text):
            name, peer = message[1], ranks[int(message[4])]
            messages[name, peer] += 1
            number = messages[name, peer] if entry["whole"] else 0
        tensors = () if name.startswith(UNEVEN_CALLS) else _inputs_of(entry)
        more = max(len(tensors) - MOST_TENSORS, 0)
        own = number, name, tensors[:MOST_TENSORS], "", peer, state, int(entry["place"])
        calls.append((TracedCall(*own, more=more), batch))
    return [call for call, _ in calls]


def _inputs_of(entry: Entry) -> tuple[TracedTensor, ...]:
    pairs = zip(entry["input_sizes"], entry["input_dtypes"], strict=False)
    return tuple((tuple(sizes), _DTYPES.get(dtype, dtype.lower())) for sizes, dtype in pairs)


def last_calls(calls: Sequence[TracedCall]) -> tuple[TracedCall, ...]:
    """Return the last collectives and messages, and the first calls that have not completed."""
    collectives = [i for i, call in enumerate(calls) if not call.is_message]
    messages = [i for i, call in enumerate(calls) if call.is_message]
    opened = [i for i, call in enumerate(calls) if call.is_open]
    kept = {*collectives[-LAST:], *messages[-LAST:], *opened[:LAST]}
    return tuple(calls[i] for i in sorted(kept))
