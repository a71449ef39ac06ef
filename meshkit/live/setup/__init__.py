"""Setup: how all ranks agree on a mesh, and open or close it together.

:class:`MeshProposal` holds the values that ranks compare, and :func:`open_groups` agrees on them
and creates the groups (both in proposal.py). :func:`propose_view` (view.py) and
:func:`propose_from_groups` (external.py) make proposals. :func:`check_crossing` finds axes that
cross nodes (hosts.py), and :func:`close_mesh` ends a mesh (close.py).
"""
