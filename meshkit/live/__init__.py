"""Live meshes: the process groups of a running job, and the mesh that holds them.

``mesh`` has :class:`Mesh`, a line for each method. Its longer paths, in the order of their files::

    build_mesh   core/group_plan, build_mesh, open_mesh, launch/job (agree), launch/round,
                 groups, launch/default_group (commit), group_registry
    guard        guard, status, launch/round, core/hang (who is behind)
    recover      recovery, launch/round, core/regroup (who lives, on which mesh), launch/job
                 (rejoin), open_mesh, groups, restore
"""
