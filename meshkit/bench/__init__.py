"""The speed of collectives on a mesh: each axis by itself, as in training, and beside another.

measure.py times them on the ranks of a mesh, and results.py is the pure arithmetic and the table.
"""
