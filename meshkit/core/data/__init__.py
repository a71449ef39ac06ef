"""Data: which rank reads which samples, tokens and random numbers, computed without processes.

:class:`BatchDigest` describes the batch of a rank, :func:`digests_conflict` compares those of all
ranks, and :func:`batch_conflict_error` names the ranks that conflict (batch_check.py).
"""
