"""A named grid of ranks: names, sizes, ranks, nodes and pictures, without torch or a process.

axes.py has the names and roles of axes, sizes.py their sizes. layout.py has :class:`Layout`, with
its arithmetic in ranks.py. group_plan.py lists the groups to create, topology.py the nodes, and
sequence.py the tokens of each rank. draw.py and page_script.py are pictures, as text and as a page.
"""
