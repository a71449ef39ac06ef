"""How does a tensor move from one division over the axes of a mesh to another?

pattern.py reads ``"b s/sp h d -> b s h/sp d"``, move.py adds the sizes, plan.py returns the steps
of steps.py with their cost, on the common factors of digits.py. report.py shows all of it.
mesh_move.py plans a move to the ranks of another mesh, and state.py that of a whole state. whole.py
finds the sizes of a whole state from its parts.
"""
