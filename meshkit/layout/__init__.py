"""A named grid of ranks: names, sizes, ranks, nodes and pictures, without torch or a process.

axes.py has the names and roles of axes, sizes.py their sizes. layout.py has :class:`Layout`, with
its arithmetic in ranks.py and its patterns in names.py, and position.py one rank of it.
group_plan.py lists the groups to create, and sequence.py the tokens of each rank. topology.py has
the nodes and their file, and crossings.py the axes that cross them. draw.py and page_script.py are
pictures, as text and as a page.
"""
