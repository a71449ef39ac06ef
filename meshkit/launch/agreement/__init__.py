"""Do all ranks want the same, and have all of them created it?

``consensus.py`` has ``Proposal``, ``Participants`` and ``agree``, ``commit.py`` has ``commit``: all
ranks or none. ``broadcast.py`` has ``broadcast_from_rank_0``. ``claims.py`` has ``Claim``: a value
that only one rank may have.
"""
