"""The options that commands share: how typed words become numbers, grids, nodes and batches.

``read_layout`` (grid.py),
``read_topology`` (nodes.py), ``read_batch`` (batch.py) and ``read_machine`` (machine.py) return
the objects that options describe. The other files read numbers, files, sizes of arrays and memory.
"""
