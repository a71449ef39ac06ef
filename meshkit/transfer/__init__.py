"""Move whole states: to another mesh, and between the ranks and a checkpoint.

state.py plans the move of a state, and state_plan.py binds it to tensors. transfer.py is the move
to another mesh. whole.py finds the sizes of whole tensors, and whole_state.py reads and writes
them.
"""
