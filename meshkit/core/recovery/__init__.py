"""Which ranks form the mesh after a loss, and which of them hold the state of the others?

``regroup.py`` has ``regroup``: the layout of the ranks that live. ``held_state.py`` has
``find_sources``: the step from which all go on, and the rank that sends its state to each rank.
"""
