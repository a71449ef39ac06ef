"""Compare a training step on several meshes with that on one rank.

compare.py runs the step by steps.py, parity.py compares the numbers, and causes.py says why they
differ: scaled, or a missing sum.
"""
