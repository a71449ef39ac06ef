"""Set up multiprocessing's forkserver, which imports this module first. Import it nowhere else.

Ctrl-C ends the forkserver and its ranks without a traceback. Until a rank has its first line, only
multiprocessing's own code could handle the signal. The parent gets it too and raises
KeyboardInterrupt.

The heap is frozen before the first fork. A full garbage collection writes into every object, with
torch about 170,000. In a forked process this copies all their pages, which takes 0.1 s. Until then
nothing is collected, since collections take a tenth of the time of the imports.
"""

from __future__ import annotations

import gc
import os
import signal
from functools import cache

signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@cache
def freeze() -> None:
    """Move all objects out of the reach of later collections, in this process and its children."""
    gc.collect()
    gc.freeze()
    gc.enable()


gc.disable()
os.register_at_fork(before=freeze)
