"""Data: which rank reads which samples, tokens and random numbers, computed without processes.

:class:`BatchPlan` divides a global batch over ranks (batch.py), and :class:`BatchSchedule` grows it
over a run (batch_schedule.py). :class:`Epoch` is one pass over a dataset (epoch.py).
:class:`SequencePlan` cuts the tokens of a sequence (sequence.py). :func:`stream_seed` seeds random
streams (random_streams.py). :class:`BatchDigest` compares batches of ranks (batch_check.py).
"""
