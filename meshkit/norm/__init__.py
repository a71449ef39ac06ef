"""The norm of all gradients, on any mesh.

shares.py decides which rank counts a gradient. norm.py adds the shares, and clips.
"""
