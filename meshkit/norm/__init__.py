"""The norm of all gradients, on any mesh.

shares.py decides which rank counts a gradient. norm.py adds the shares, and clips. copies.py
compares the gradients that must be copies of each other.
"""
