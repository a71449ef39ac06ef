"""The rank of this process, its launcher, and how all ranks join the job.

``join.py`` has ``init`` and ``shutdown``, ``job.py`` the current job, ``detect.py`` has ``detect``,
and ``spawn.py`` has ``spawn``. Ranks agree by the rounds of ``round.py``, at the store of
``store.py``, which ``open_store.py`` opens. ``generation.py`` numbers the starts of a job. No other
package reads the environment.
"""
