"""Data on a live mesh: which samples, tokens and random numbers this rank uses.

Public names, by file::

    data_index.py         the number that ranks with equal samples share
    rank_batch.py         RankBatch, the micro batches of one rank
    sampler.py            MicroBatchSampler, of a dataset with a length
    stream.py             MicroBatchStream, of an iterable dataset
    loader.py             make_loader, a DataLoader with either
    sequence.py           SequenceShard, the tokens of one rank
    rng.py                RandomStreams, torch's generators by coordinate
    check_batch.py        check_batches, over all ranks
    check_parameters.py   compare_parameters, over all ranks
"""
