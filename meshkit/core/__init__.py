"""The layout, groups, batches and placement that follow from sizes and ranks, without a process.

Everything here is pure: numpy and einops, without torch, a clock, the environment or I/O::

    errors  text  call           errors are data; the decorator that quotes the call; tables
    axes  sizes  ranks  layout   names and roles, inference of a size, Layout
    group_plan  topology         the groups to create; nodes, racks and placement
    batch  schedule  epoch  sequence  seeds     who reads which sample, token and random number
    compare  hang  regroup       who differs from whom; who is left
    report  draw  page           results as text and pictures
    cost/  redistribute/         time and memory of a step; moves of a tensor
"""

VERSION = "0.1.0"  # equal on all ranks of a job, and to pyproject.toml
