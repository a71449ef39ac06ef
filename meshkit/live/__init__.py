"""Live meshes: the process groups of a running job, and the mesh that holds them.

:func:`build_mesh` creates a mesh (build_mesh.py), and :class:`Mesh` answers every question about it
(mesh.py). The ranks agree on it in open_mesh.py, and its groups are in groups.py.
guard.py reports a hang, recovery.py goes on after a loss, and restore.py sends the state.
"""
