"""Reports: answers of commands and texts of errors, as data and as text.

:class:`JobReport` describes a job before it runs (job.py) and :class:`RankReport` one rank of it
(rank.py). :class:`Difference` compares two layouts (diff.py). :class:`Verification` holds the
timings of a checked mesh (verification.py). :func:`disagreement` (disagreement.py) writes the error
that all ranks raise.
"""
