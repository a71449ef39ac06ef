"""How do the ranks of a job read and write a store in bounded time?

``deadline.py`` has timeouts, the ``Deadline``, and ``store_call`` and ``store_wait``, which end in
time, ``keys.py`` every key. ``check_in.py`` has the process and the request of a rank.
``rank_lease.py`` has ``acquire_rank``: one process holds a rank. ``torchrun_attempt.py`` has
``store_of_attempt``: restarts of torchrun share one store.
"""
