"""How fast does a tensor move over a mesh, beside functions by hand, DTensor and spmd_types?

The moves by hand (by_hand.py) and by DTensor (by_dtensor.py), the cost of a call (calls.py), the
time on real ranks (times.py), the figures of plans (plans.py). ``redistribute.py`` runs them all.
"""
