"""A Slurm cluster of several nodes on one machine, in network namespaces of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launchers.checks import clean_environ, require_programs
from tests.launchers.two_hosts import Host, two_hosts

CONFIG = """
ClusterName=nodes
SlurmctldHost={first}
SlurmctldPort=17000
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
NodeName={nodes} Port=17001 CPUs=16 RealMemory=1000
PartitionName=main Nodes={nodes} Default=YES MaxTime=10 State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """A running cluster; commands run on its first node."""

    login: Host
    environ: dict[str, str]

    def command(self, *argv: str) -> list[str]:
        """Return a Slurm command that runs on the login node."""
        return self.login.command("env", f"SLURM_CONF={self.environ['SLURM_CONF']}", *argv)


@contextmanager
def two_nodes(folder: Path) -> Iterator[Slurm]:
    """Start a cluster of rack1node1 and rack1node2."""
    with two_hosts(folder, "rack1node1", "rack1node2") as hosts, cluster(folder, hosts) as slurm:
        yield slurm


@contextmanager
def cluster(folder: Path, hosts: Sequence[Host]) -> Iterator[Slurm]:
    """Start munge, a controller and a node on each host; terminate them by their ids."""
    require_programs("munge", "munged")
    require_programs("slurm-wlm", "slurmctld", "slurmd", "srun", "sbatch", "salloc")
    config, nodes = folder / "slurm.conf", ",".join(host.name for host in hosts)
    config.write_text(CONFIG.format(folder=folder, first=hosts[0].name, nodes=nodes))
    environ = clean_environ(SLURM_CONF=str(config))
    with ExitStack() as stack:
        daemons = [(hosts[0], _munged(folder)), (hosts[0], ["slurmctld", "-D", "-i"])]
        daemons += [(host, ["slurmd", "-D", "-N", host.name]) for host in hosts]
        (folder / "state").mkdir()
        for host, argv in daemons:
            log = stack.enter_context((folder / f"{Path(argv[0]).name}.{host.name}").open("wb"))
            process = subprocess.Popen(host.command(*argv), env=environ, stdout=log, stderr=log)
            stack.callback(_end, process)
        slurm = Slurm(hosts[0], environ)
        _wait_until_idle(slurm, folder, len(hosts))
        yield slurm


def _munged(folder: Path) -> list[str]:
    """Return the command of munged with a key, a socket and files of its own."""
    key = folder / "munge.key"
    key.write_bytes(bytes(range(256)) * 4)
    key.chmod(0o400)
    files = {"key-file": key, "socket": folder / "munge.socket"}
    files |= {f"{kind}-file": folder / f"munged.{kind}" for kind in ("log", "pid", "seed")}
    return ["munged", "--foreground", "--force", *(f"--{k}={v}" for k, v in files.items())]


def _wait_until_idle(slurm: Slurm, folder: Path, nodes: int) -> None:
    deadline = time.monotonic() + 30
    output = ""
    while time.monotonic() < deadline:
        command = slurm.command("sinfo", "-h", "-o", "%D %t")
        output = subprocess.run(command, capture_output=True, text=True).stdout
        if output.split() == [str(nodes), "idle"]:
            return
        time.sleep(0.2)
    logs = "\n".join(p.read_text(errors="replace")[-800:] for p in folder.glob("slurm*.*"))
    pytest.fail(f"the {nodes} nodes of Slurm did not become idle: {output}\n{logs}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
