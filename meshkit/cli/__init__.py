"""The console script ``meshkit``. Only commands that need torch import it, when they run.

``main`` reads the command line and prints errors. The commands stand in files by what they need::

    inspect    plan, explain, move, search: no process
    eject      eject: no process
    ranks      hello, check, bench, store: they start ranks
    doctor     doctor: this machine
    status     status: a job that runs, from outside
    rehearse   rehearse: ranks of a program, played

options.py reads the options that several commands share.
"""
