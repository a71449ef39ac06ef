"""How fast are collectives on a mesh: each axis by itself, as in training, and beside another.

``run_benchmark`` (run.py) joins the job, builds the mesh of a ``Request`` and measures it.
``Sweep`` (sweep.py) measures a mesh that exists, with ``SweepOptions``. :mod:`.results` has the
figures and their output, without torch.
"""
