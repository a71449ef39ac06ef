"""Live meshes: the process groups of a running job, and the mesh that holds them.

``mesh`` has :class:`Mesh`, a line for each method. Its longer paths, in the order of their files::

    build_mesh   core/group_plan, build_mesh, open_mesh, launch/job (agree), launch/round,
                 groups, launch/creation (on all ranks or on none), group_registry
    guard        guard, status, launch/round, core/hang (who is behind)
    recover      recovery, launch/round, core/regroup (who lives, on which mesh), launch/job
                 (rejoin), launch/creation, open_mesh, groups; then restore gives ranks their state

A round ends with a judge of core/judges. :meth:`Mesh.device_mesh` is in ``device_mesh``, and
``meshkit.init_device_mesh`` in ``init_device_mesh``; ``device_mesh_groups`` answers later
``_flatten`` and ``_unflatten``. ``norm`` is :meth:`Mesh.clip_grad_norm`, ``commit`` the vote before
a step of the optimizer, and ``admission`` takes in processes that were started anew. Tensors move
in ``move/``; batches and random numbers are in ``data/``.
"""
