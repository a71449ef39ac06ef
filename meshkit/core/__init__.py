"""Which layout, groups, batches and placement follow from sizes and ranks, before a process exists?

Everything here is pure: numpy and einops, without torch, a clock, the environment or I/O.
:class:`Layout` and :class:`GroupPlan` are in grid/, :class:`BatchPlan` and :class:`SequencePlan` in
data/, :class:`Topology` in topology/; cost/, draw/ and report/ show results. The exceptions are in
errors.py, and :func:`public`, which quotes the user's call in them, is in call.py.
"""
