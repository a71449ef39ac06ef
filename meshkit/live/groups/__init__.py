"""Process groups: create them, share equal ones between views, and report them.

:func:`create_groups` creates the missing groups of a plan under :class:`GroupOptions`
(both in create.py). :class:`MeshGroups` holds those of one mesh, and :class:`GroupRegistry` those
that its views share (mesh_groups.py). Groups of the user are checked in external.py.
:class:`GroupsReport` lists all of them (report.py).
"""
