"""The job after a loss: ranks that go on, and processes that come back.

``rejoin.py`` creates the default group of the ranks that live. ``waiting.py`` finds the processes
that wait at the store with the numbers of lost ranks, and ``newcomer.py`` joins one of them.
"""
