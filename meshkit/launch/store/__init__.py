"""How do the ranks of a job read and write a store in bounded time?

``client.py`` has ``store_call`` and ``store_wait``, which end in time, ``deadline.py`` the
``Deadline``, ``keys.py`` every key. ``rank_lease.py`` has ``acquire_rank``: one process holds a
rank. ``torchrun_attempt.py`` has ``store_of_attempt``: restarts of torchrun share one store.
"""
