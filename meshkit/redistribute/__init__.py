"""Move a tensor over the axes of a mesh, or to another mesh, and its gradient back.

pattern.py reads ``"b s/sp h d -> b s h/sp d"``, and move.py and dim_sizes.py add the sizes. plan.py
returns the steps of steps.py, on the common factors of digits.py, and report.py shows them.
redistribution.py is a pattern on a mesh, or on a mesh and its view (mesh_and_view.py). program.py
runs its steps, each by operations.py, and reductions.py gives NaN and bools the result of one
process.

For another mesh, mesh_move.py plans who sends which of the parts of parts.py. to_mesh.py makes this
one more step of a program, mover.py runs the step, and the ranks of mesh_pair.py agree on it.
moves.py keeps the redistributions of a mesh. ring.py has moves without a pattern. equal_calls.py
finds ranks that make different calls, checked.py wrong marks.

A result may share memory with its tensor if no part of it came from another rank. The result of a
move to another mesh never does.
"""
