"""Which layout, groups, batches and placement follow from sizes and ranks, before a process exists?

Everything here is pure: numpy and einops, without torch, a clock, the environment or I/O::

    grid/            Layout, GroupPlan        redistribute/    moves of a tensor
    data/            BatchPlan, SequencePlan  recovery/        the grid after a loss
    topology/        Topology                 cost/            time and memory of a step
    errors.py        the exceptions           draw/, report/   results as text and pictures
    call.py          public, which quotes the user's call in an error
"""
