"""Live meshes: the process groups of a running job, and the mesh that holds them.

:func:`build_mesh` creates a mesh (build_mesh.py), and :class:`Mesh` answers every question about it
(mesh.py). The packages are ``setup`` (agree and open), ``groups`` (create and share), ``guard``
(failures) and ``data`` (samples, tokens and random streams).
"""
