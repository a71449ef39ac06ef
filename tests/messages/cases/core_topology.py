"""Cases of errors that core/topology raises."""

from __future__ import annotations

from meshkit import (
    Layout,
    Topology,
)
from meshkit.core.topology.crossing_policy import check_policies
from meshkit.core.topology.hostfile import parse_hostfile
from tests.messages.snapshot import unique

CASES = unique(
    ("a hostfile without a host", lambda: parse_hostfile("# nothing\n")),
    ("a hostfile with a line that is too short", lambda: parse_hostfile("a r1\n\nb\n")),
    ("a hostfile with a line that is too long", lambda: parse_hostfile("a b c d e\n")),
    ("a hostfile of Open MPI", lambda: parse_hostfile("# mpirun\na slots=8\n")),
    ("a host in two racks", lambda: parse_hostfile("a r1\nb r1\na r2\n")),
    ("crossing as a str", lambda: check_policies(Layout(tp=2), "tp")),
    (
        "an unknown crossing policy",
        lambda: check_policies(Layout(dp=2, tp=2), {"tp": "warn", "dp": "no"}),
    ),
    ("ranks that do not divide over nodes", lambda: Topology.even(15, nodes=2)),
    ("fewer ranks than nodes", lambda: Topology.even(8, nodes=16)),
    ("nodes that do not divide over racks", lambda: Topology.even(8, nodes=4, racks=3)),
    (
        "a float number of nodes",
        lambda: Topology.even(8, nodes=2.0),
    ),
    ("a topology without nodes", lambda: Topology.of_sizes([])),
    ("an empty node", lambda: Topology.of_sizes([8, 0])),
    ("more ranks than int64 on nodes", lambda: Topology.of_sizes([2**63 - 2, 1])),
    ("hosts as one str", lambda: Topology.of_hosts("aabb")),
    (
        "a level that exists already",
        lambda: Topology.even(8, nodes=4).with_level("node", [0, 0, 1, 1]),
    ),
    (
        "a level that covers only some nodes",
        lambda: Topology.even(8, nodes=4).with_level("rack", [0, 1]),
    ),
    (
        "a level that splits a rack",
        lambda: Topology.even(8, nodes=4, racks=2).with_level("hall", [0, 1, 1, 1]),
    ),
    ("an unknown level", lambda: Topology.even(8, nodes=4).domain_of("rack", [0])),
    ("the node of a rank outside the topology", lambda: Topology.even(8, nodes=4).node_of([0, 8])),
    ("the ranks of a node outside the topology", lambda: Topology.even(8, nodes=4).ranks_of(4)),
)
