"""Process groups: which groups a rank holds, and how tensors are gathered over one of them.

:func:`all_gather` returns the tensor of every rank (all_gather.py). :class:`GroupsReport` lists the
groups of a rank, and :func:`report_groups` makes it (report.py).
"""
