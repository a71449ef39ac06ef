"""Can a distributed job run on this machine?

``checkup`` in ``checkup.py`` runs all checks and returns a list of ``Finding`` (``finding.py``).
``check_interfaces`` in ``interfaces.py`` checks host names and network interfaces.
"""
