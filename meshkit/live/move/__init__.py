"""How does a tensor move over the axes of a mesh, and its gradient back?

:class:`Redistribution` (redistribution.py) is a pattern on a mesh. :class:`Program` (operations.py)
runs the steps of a plan on this rank, and :class:`Redistribute` there is the autograd function.
:func:`shift_tensor` and :func:`exchange_rows` (ring.py) are the moves without a pattern.
:func:`compare_calls` (equal.py) finds ranks that make different calls, :class:`Check` (checked.py)
wrong marks.

To another mesh, mesh_move.py moves a tensor, and transfer.py a whole state such as the weights of a
trainer. Both use mover.py, which sends and gathers. whole_state.py is for checkpoints. To another
job, bridge.py is the entry, launch/meeting.py the place where both meet, core/bridge.py what they
must agree on, and exchange.py one move.
"""
