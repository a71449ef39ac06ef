"""How do the ranks that live go on after a loss?

``recover.py`` has ``recover_mesh``: a new mesh of the ranks that live. ``spare.py`` lets a rank
outside the mesh wait for the next loss. ``admit.py`` has ``admit_newcomers``: the mesh grows again
by processes started anew. ``arrive.py`` has their side, ``open_mesh_of_job``. ``recovery.py`` has
``Recovery``, what a rank knows of the last one. ``restore.py`` sends the state to the ranks that
lack it.
"""
