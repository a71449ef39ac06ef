"""Move a tensor over the axes of a mesh, or to another mesh, and its gradient back.

pattern.py reads ``"b s/sp h d -> b s h/sp d"``, and move.py adds the sizes. plan.py returns the
steps of steps.py, on the common factors of digits.py, and report.py shows them. redistribution.py
is a pattern on a live mesh, and operations.py runs its steps. mesh_move.py plans a move to another
mesh, which to_mesh.py and mover.py run. ring.py has moves without a pattern. equal_calls.py
finds ranks that make different calls, checked.py wrong marks. reductions.py gives NaN and bools the
result of one process.
"""
