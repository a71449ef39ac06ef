"""Which rank is this process, according to the launcher that started it? No torch, no network.

``detect`` is in ``detect.py`` and returns a ``World`` (``world.py``) by reading one row of
``LAUNCHERS`` (``table.py``). ``host_names``, which expands a Slurm hostlist, is in ``hostlist.py``.
``completed.py`` adds the variables that other libraries read. ``program.py`` has the command line
that starts this program on several ranks. ``slurm_topology``, which reads Slurm's
``topology.conf``, is in ``slurm_topology.py``.
"""
