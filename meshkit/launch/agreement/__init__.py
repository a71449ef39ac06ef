"""Do all ranks want the same, and have all of them created it?

``consensus.py`` has ``agree`` and ``commit``: all ranks or none. ``proposal.py`` has ``Proposal``
and ``Participants``, ``verdict.py`` the decision if ranks differ or are missing. ``broadcast.py``
has ``broadcast_from_rank_0``. ``claims.py`` has ``Claim``: a value that only one rank may have.
"""
