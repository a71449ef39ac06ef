"""How does a tensor move from one division over the axes of a mesh to another?

:func:`parse_pattern` (pattern.py) reads ``"b s/sp h d -> b s h/sp d"``. :class:`Move` (move.py)
adds the sizes. :func:`plan_move` (plan.py) returns the steps with their cost.
:func:`plan_redistribution` (report.py) reports all of it.
"""
