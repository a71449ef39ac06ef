"""``Mesh``, a line for each method, and the calls that return one.

init_device_mesh.py returns torch's ``DeviceMesh``, and current_mesh.py is the mesh of a block.

The longer paths, in the order of their files::

    build_mesh   layout/group_plan, mesh/build_mesh, groups/open_mesh, launch/agreement,
                 groups/groups, launch/creation (on all ranks or on none), groups/registry
    guard        guard/guard, guard/watch (a thread on each rank), guard/roll_call, guard/hang (who
                 is behind); guard/state has the keys
    recover      recover/rounds, launch/agreement, launch/regroup (who lives, on which mesh),
                 launch/job (rejoin), groups/open_mesh; recover/restore gives ranks their state
"""
