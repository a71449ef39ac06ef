"""Which rank uses which samples, tokens and random numbers.

batch.py and schedule.py have the sizes of a batch, micro_batches.py a rank's micro batches, and
epoch.py the order of the samples. loaders.py reads a dataset through sampler.py, or, without a
length, stream.py and passes.py. order.py is an order of the user, and source.py is what these
share. seeds.py, rng.py and draws.py have random numbers, and sequence.py tokens. checks.py,
conflicts.py and first_batch.py compare ranks, by the texts of canonical.py.
"""
