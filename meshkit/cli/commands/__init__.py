"""The commands, one file each: the result of ``meshkit NAME``, and its own options.

Each file has one constant, a ``Command``, with the name of the file: ``PLAN`` in plan.py.
"""
