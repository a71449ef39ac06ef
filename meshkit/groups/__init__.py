"""The process groups of a layout, on all ranks or on none.

requests.py lists the missing ones, groups.py creates them with the backends of backends.py, and
registry.py keeps them. open_mesh.py opens a mesh together on all ranks, and close_mesh.py closes
it. live_mesh.py is a mesh as the wings see it. device_mesh.py reads torch's ``DeviceMesh``, and
device_mesh_groups.py makes the groups that it asks for later. edges.py has a group for each edge of
a pipeline, hosts.py the hosts of ranks. status.py counts the collectives that a rank has begun,
and frame_calls.py reads those of torch from the frames of a thread.
"""
