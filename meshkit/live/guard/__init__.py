"""Guard: which ranks cause a collective to fail or hang, and how every rank learns of it.

:func:`guard_collectives` translates failures inside a block (guard.py). :func:`report_failure` runs
the roll call in which all ranks post their status (roll_call.py). :func:`rank_status` reads that
status (stack.py). :func:`barrier` and :func:`wait` announce themselves to a guard (barrier.py,
current.py). :func:`verify_groups` checks and times every group (verify.py).
"""
