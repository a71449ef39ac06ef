"""Data on a live mesh: which samples, tokens and random numbers this rank uses.

batch.py has the batch plan of a rank, sampler.py the reading of a dataset and its state,
stream.py and passes.py that of a dataset without a length, sequence.py the tokens, and rng.py the
random streams. checks.py and first_batch.py compare ranks.
"""
