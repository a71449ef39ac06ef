"""The rank of this process, its launcher, and how all ranks join the job.

The path of ``init``, in the order of its files::

    join             init: detect, open the store, agree, create the default group, confirm
    detect           the world of this rank, from one row of launchers
    device           its device and backend
    generation       the start of the job that this rank joins, and its lease on the rank
    store, round     where ranks meet, and how they agree
    default_group    torch's group, created on all ranks or on none
    job              the facts that stay: ranks, store, timeouts, epoch

``spawn`` starts ranks, and ``newcomer`` lets one join a job that runs. No other package reads the
environment.
"""
