"""Process groups: create them, share equal ones between views, and report them.

:func:`create_groups` creates the missing groups of a plan (create.py) under :class:`GroupOptions`
(options.py). :class:`GroupRegistry` holds the groups that views share (registry.py), and
:class:`MeshGroups` those of one mesh (mesh_groups.py). :class:`GroupsReport` lists them
(report.py).
"""
