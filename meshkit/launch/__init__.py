"""The rank of this process, its launcher, and how all ranks join the job.

The path of ``init``, in the order of its files::

    join             init: detect, open the store, agree, create the default group, confirm
    detect           the world of this rank, from one row of launchers
    device           its device and backend
    nodes            its node, from the machines of all ranks, if the launcher does not state it
    generation       the start of the job that this rank joins, and its lease on the rank
    store, round     where ranks meet, and how they agree
    creation         groups of torch, created on all ranks or on none, in time
    default_group    torch's default group
    job              the facts that stay: ranks, store, timeouts, epoch

``launchers`` is the table to extend, with ``signs`` of jobs that no row knows. ``mpi`` and
``slurm`` are rows with code. ``times`` has the deadlines, and the seconds that the promises need.
``spawn`` starts ranks. ``newcomer`` lets one join a job that runs, and ``regroup`` decides who is
left. ``judges`` decide a round, and ``disagreement`` has their words. Private names of torch stand
in the files ``torch_*`` alone, and no other package reads the environment.
"""
