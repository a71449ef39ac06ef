"""How does a Python program start a job of local processes and collect their results?

``spawn`` is in ``spawn.py``. Each child runs ``run`` in ``worker.py``. ``context_for`` in
``start_method.py`` chooses between forkserver and fork. ``preload`` there registers modules that
the forkserver imports once for all ranks. ``habits.py`` recognises calls that are written for
``torch.multiprocessing.spawn``.
"""
