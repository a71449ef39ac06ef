"""Go on after a loss: who lives, on which mesh, and with which state.

recovery.py gives the mesh of the ranks that live, as launch/regroup.py decides. restore.py gives
the ranks their state. admission.py takes in processes that were started anew.
"""
