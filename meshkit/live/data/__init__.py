"""Data on a live mesh: which samples, tokens and random numbers this rank uses.

Public names, by file::

    batch.py       RankBatch, the batch plan of one rank
    sampler.py     MicroBatchSampler of a dataset with a length, MicroBatchStream of an iterable one
    sequence.py    SequenceShard, the tokens of one rank
    rng.py         RandomStreams, torch's generators by coordinate
    checks.py      compare_batches and compare_parameters, over all ranks
"""
