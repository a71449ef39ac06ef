"""How does a tensor move over the axes of a mesh, and its gradient back?

:class:`Redistribution` (redistribution.py) is a pattern on a mesh. :class:`Program` (program.py)
has the operations of this rank. :func:`shift_tensor` (shift.py) and :func:`exchange_rows`
(exchange.py) are the moves without a pattern. :class:`Check` (checked.py) finds wrong marks.
"""
