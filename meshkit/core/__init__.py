"""The layout, groups, batches and placement that follow from sizes and ranks, without a process.

Everything here is pure: numpy and einops, without torch, a clock, the environment or I/O::

    errors  text  call  guesses  errors are data; the decorator that quotes the call; tables; calls
                                 in the words of other libraries
    axes  sizes                  names and roles of axes; inference of a size
    layout  ranks                Layout: coordinates, neighbors and groups; its arithmetic
    group_plan  topology         the groups to create; nodes, racks and placement
    batch  schedule  epoch  sequence  seeds     who reads which sample, token and random number
    compare  judges  bridge      who differs from whom; the decision of ranks that meet
    hang  regroup                who is behind in a hang; who is left after a loss
    norm                         which rank counts a gradient in a norm
    causes  parity               why numbers differ from those of one rank: scaled, a missing sum
    rehearsal  mismatches        the traces of played ranks, and those that stand for the others;
    rehearsal_report             whether their collectives match; the report
    job_report  report           what `meshkit plan`, `explain` and `check` print
    draw  plan_script            pictures of a grid, as text and as a page
    cost/  redistribute/         time and memory of a step; moves of a tensor and of a state
"""

VERSION = "0.1.0"  # equal on all ranks of a job, and to pyproject.toml
