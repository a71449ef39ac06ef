"""Play some ranks of a large job in one process, and check that their collectives match.

rehearsal.py chooses the ranks, stage.py forks them, and rank.py plays one. recording.py is its
process group, recorder.py keeps the operations of the rank, and record.py is that record.
mismatches.py compares the records, and report.py shows them.
"""
