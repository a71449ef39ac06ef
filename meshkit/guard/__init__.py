"""Find the rank that fails or hangs, on all ranks, and end its collectives.

guard.py has the guard and its roll call, hang.py decides who is behind, and reentrant.py lets
threads and tasks use one guard. barrier.py names late ranks, commit.py is the vote before a step of
the optimizer, and first.py lets one rank go first. verification.py is the result of a check.
"""
