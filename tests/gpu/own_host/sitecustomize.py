"""Each process of a job names itself another host, so that NCCL takes several ranks on one GPU.

A folder of this file alone goes on PYTHONPATH: Python imports it before anything else. Ranks that
meshkit forks get the environment of their parent, so they are named again after that.
"""

import os
import sys


def name_host() -> None:
    """Give this process a host of its own."""
    os.environ["NCCL_HOSTID"] = f"process-{os.getpid()}"


def name_forked_host() -> None:
    """Name a forked child, and again once meshkit has replaced its environment."""
    name_host()
    torch = sys.modules.get("torch")
    if torch is not None and "TESTS_DEVICE" in os.environ:
        torch.set_default_device("cpu" if uses_gpu else os.environ["TESTS_DEVICE"])
    worker = sys.modules.get("meshkit.launch.worker")
    if worker is None:
        return
    replace = worker.replace_environment

    def replace_and_name(environ: dict) -> None:
        replace(environ)
        name_host()

    worker.replace_environment = replace_and_name


def look_at_parent() -> None:
    """Record whether this process uses its GPU, which its forks then cannot."""
    global uses_gpu
    torch = sys.modules.get("torch")
    uses_gpu = torch is not None and torch.cuda.is_initialized()


uses_gpu = False
name_host()
os.register_at_fork(before=look_at_parent, after_in_child=name_forked_host)
