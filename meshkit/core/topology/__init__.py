"""Describe which node each rank is on, find the axes that cross nodes, and place ranks.

Public names, by file::

    topology.py         Topology
    hostfile.py         parse_hostfile
    crossing.py         crossings, placed
    crossing_policy.py  check_crossings
"""
