"""Find the rank that fails or hangs, on all ranks, and end its collectives.

guard.py is the block around a step. Its failures open a roll call (roll_call.py), which the thread
of watch.py answers for a rank that hangs. From their answers, table.py knows in which calls ranks
wait, verdict.py finds the root of the hang, and hang.py writes the report. silent.py asks NCCL for
ranks that do not answer, and early.py sees failures before the limit. state.py has what they share,
and the keys in the store. reentrant.py lets threads and tasks use one guard.

sampling.py measures what each rank does in a step, and stragglers.py finds the ranks that are late
in each step. The thread of watch.py also answers ``meshkit status``, which looks at the job from
outside.

barrier.py names late ranks, commit.py is the vote before a step of the optimizer, and first.py lets
one rank go first. verification.py is the result of a check.
"""
