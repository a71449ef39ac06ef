"""The layout, groups, batches and placement that follow from sizes and ranks, without a process.

Everything here is pure: numpy and einops, without torch, a clock, the environment or I/O::

    errors  text  call           errors are data; the decorator that quotes the call; tables
    axes  sizes  ranks  layout   names and roles, inference of a size, Layout
    group_plan  topology         the groups to create; nodes, racks and placement
    batch  schedule  epoch  sequence  seeds     who reads which sample, token and random number
    compare  judges              who differs from whom; the decision of ranks that meet
    hang  regroup                who is behind in a hang; who is left after a loss
    norm                         which rank counts a gradient in a norm
    causes  parity               why numbers differ from those of one rank: scaled, a missing sum
    rehearsal  rehearsal_report  whether the collectives of played ranks match
    job_report  report           what `meshkit plan`, `explain` and `check` print
    draw                         pictures of a grid, as text and as a page
    cost/  redistribute/         time and memory of a step; moves of a tensor and of a state
"""

VERSION = "0.1.0"  # equal on all ranks of a job, and to pyproject.toml
