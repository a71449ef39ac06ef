"""Play some ranks of a large job in one process, and check that their collectives match.

rehearsal.py plays the ranks, recording.py is their group of torch, and record.py what they did.
mismatches.py compares the records, and report.py shows them.
"""
