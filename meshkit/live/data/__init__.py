"""Data on a live mesh: which samples, tokens and random numbers this rank uses.

Ranks with one data index share their samples (data_index.py).
:class:`RankBatch` holds the micro batches of one rank (rank_batch.py). :class:`MicroBatchSampler`
(sampler.py) and :class:`MicroBatchStream` (stream.py) feed a DataLoader. :class:`SequenceShard`
cuts sequences (sequence.py). :class:`RandomStreams` seeds torch's generators (rng.py).
:func:`check_batches` compares the batches of all ranks (check_batch.py).
"""
