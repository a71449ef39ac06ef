"""Data: which rank reads which samples, tokens and random numbers, computed without processes.

Public names, by file::

    batch.py            BatchPlan, a global batch over ranks
    batch_schedule.py   BatchSchedule, a batch that grows over a run
    epoch.py            Epoch, one pass over a dataset
    sequence.py         SequencePlan, the tokens of each rank
    random_streams.py   stream_seed
    batch_check.py      BatchDigest, which compares the batches of ranks
"""
