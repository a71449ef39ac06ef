"""The rank of this process, its launcher, and how all ranks join the job.

The path of ``init``, in the order of its files::

    init             the arguments, for a job that begins or that runs
    join             detect, open the store, agree, create the default group, confirm
    detect           the world of this rank, from one row of launchers
    device           its device and backend
    nodes            its node, from the machines of all ranks, if the launcher does not state it
    generation       the start of the job that this rank joins, and its lease on the rank
    store, round     the table in which ranks leave records, and how they decide together
    creation         groups of torch, created on all ranks or on none, in time
    default_group    torch's default group
    job              the facts that stay: ranks, store, timeouts, membership
    agreement        every later question that ranks answer together, and when its keys go

The other files, by subject::

    launcher     launchers: the table to extend; signs of jobs that no row knows; mpi, slurm: rows
                 with code; endpoint: variables as numbers; world: the answer; command: the command
                 that would start the ranks
    store        open_store; file_store: the file of a FileStore; connection: the socket to its
                 host; name_lookup, urls: its address; token: for a store of several jobs;
                 outside: a job as a client that is no rank sees it
    decision     judges: pure functions; disagreement: their words
    loss         regroup: who lives, on which mesh; newcomer: a process that takes a lost rank
    process      spawn, worker, forkserver: local ranks; process: its identity and state;
                 of_one_process: objects that never leave it; tensors: facts of one; log;
                 times: every deadline
    torch        torch_groups, torch_aborts, torch_meshes, torch_program, torch_rehearsal,
                 torch_traces: the only files with private names of torch
    nccl         nccl_ras: the counts that NCCL's own service has

No other package reads the environment.
"""
