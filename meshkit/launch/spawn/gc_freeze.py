"""The forkserver of ``spawn`` imports this last, so that its children leave torch's objects alone.

A full garbage collection looks at every object, with torch some 170,000, and writes into each one:
in a process that was forked this copies all their pages, which takes 0.1 s.
"""

import gc

gc.collect()
gc.freeze()
