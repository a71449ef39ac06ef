"""Predict the memory and the time of a training step, and rank the layouts of a world.

Public names, by file::

    transformer.py    ModelShape
    machines.py       Machine, MACHINES
    memory.py         ParallelConfig, bytes_per_rank
    step_time.py      TrainingJob, step_terms
    search.py         search
    search_report.py  format_search
"""
