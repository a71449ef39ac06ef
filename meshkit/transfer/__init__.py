"""Move whole states: to another mesh, and between the ranks and a checkpoint.

state_tables.py lets ranks state their tensors, state.py plans their move, and state_plan.py binds
it to tensors. transfer.py is the move to another mesh. whole.py finds the sizes of whole tensors,
whole_state.py reads and writes them, and copies.py compares those that are not cut.
"""
