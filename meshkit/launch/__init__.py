"""Which rank is this process, and how does it join the job?

``join.py`` has ``init`` and ``shutdown``, ``job.py`` has ``Job`` and ``current_job``,
``launchers/detect.py`` has ``detect``, and ``spawn/spawn.py`` has ``spawn``. No other package reads
the environment.
"""
