"""The console script ``meshkit``. Only commands that need torch import it, when they run.

``main`` reads the command line and prints errors. The commands stand in files by what they need::

    inspect    plan, explain, move, search: no process
    eject      eject: no process
    ranks      hello, check, store: they start ranks
    bench      bench: it starts ranks, too
    doctor     doctor: this machine
    status     status: a job that runs, from outside
    rehearse   rehearse: ranks of a program, played
    preflight  preflight: doctor, bench and rehearse as one

options.py reads the options that several commands share.
"""
