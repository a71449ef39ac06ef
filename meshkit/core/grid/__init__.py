"""How are the ranks of a job arranged, and which process groups does a mesh need?

Public names, by file::

    layout.py       Layout, the named grid of ranks
    factor.py       factor_world and split_world, which make one from a number of ranks
    group_plan.py   GroupPlan, the groups to create
    axis_names.py   parse_axes, the axes that a user writes
    sizes.py        infer_sizes, the sizes that a user writes
"""
