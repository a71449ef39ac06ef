"""Go on after a loss: who lives, on which mesh, and with which state.

rounds.py gives the mesh of the ranks that live, as launch/regroup.py decides. recovery.py is what a
rank knows of it, and restore.py gives the ranks their state. admission.py takes in processes that
were started anew.
"""
