"""The speed of collectives on a mesh: each axis by itself, as in training, and beside another.

measure.py times the collectives of calls.py on the ranks of a mesh, compute.py beside a
matrix product. The other files are pure:
results.py (plan and figures), slow.py (slow groups), limits.py (verdict), report.py (text, JSON),
page.py (a picture).
"""
