"""What is true before any process exists: numpy and einops only.

No torch, no clock, no environment, no I/O.
"""
