"""End the forkserver and its ranks on Ctrl-C without a traceback. It is imported first there.

Until a rank has its first line, only multiprocessing's own code could handle the signal, and it
prints a traceback. The parent gets the signal as well, and raises KeyboardInterrupt.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
