"""The norm of all gradients, on any mesh.

shares.py decides which rank counts a gradient. totals.py adds up the shares, and norm.py takes the
norm, and clips. copies.py compares the gradients that must be copies of each other, and calls.py
the calls of all ranks.
"""
