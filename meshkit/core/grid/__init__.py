"""How are the ranks of a job arranged, and which process groups does a mesh need?

:class:`Layout` (layout.py) is the named grid of ranks, :func:`factor_world` and :func:`split_world`
(factor.py) make one from a number of ranks, :class:`GroupPlan` (group_plan.py) lists the groups to
create, :func:`parse_axes` (axis_names.py) and :func:`infer_sizes` (sizes.py) read what users write.
"""
