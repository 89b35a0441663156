"""A Slurm cluster of one node on this machine: its files in a temporary folder, its ports on 127.0.0.1."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CONF = """ClusterName=longtail
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={at}/munge.sock
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 NodeHostname={host} CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Return why a cluster cannot be started here, or an empty text."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "munged") if shutil.which(name) is None]
    if missing:
        return f"needs Slurm, but there is no {missing[0]}: apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "needs root, because slurmd starts jobs as their user"


def until(true: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.25)


def said_by(*command: str) -> str:
    """Return what a command prints, also if it fails."""
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout


@contextmanager
def slurm(cpus: int = 4) -> Iterator[Path]:
    """Start a cluster, set SLURM_CONF to it, yield its folder, and stop it afterwards."""
    at = Path(tempfile.mkdtemp(prefix="longtail-slurm-"))
    at.chmod(0o755)  # munged refuses a socket that others cannot reach
    for name in ("state", "spool"):
        (at / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    (at / "slurm.conf").write_text(CONF.format(at=at, host=host, cpus=cpus, ports=_free_ports(2)))
    major, minor = map(int, re.findall(r"(\d+)\.(\d+)", said_by("slurmd", "-V"))[0])
    plugin = "disabled" if (major, minor) >= (23, 2) else "cgroup/v1"  # which nothing here uses
    (at / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\n")
    (at / "munge.key").write_bytes(os.urandom(128))
    (at / "munge.key").chmod(0o600)
    munge = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log"}
    options = [f"--{name}={at / file}" for name, file in {**munge, "seed-file": "munge.seed"}.items()]
    before, os.environ["SLURM_CONF"] = os.environ.get("SLURM_CONF"), str(at / "slurm.conf")
    daemons: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        quiet = subprocess.DEVNULL
        daemons.append(subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True))

    try:
        start("munged", "--foreground", *options)
        until((at / "munge.sock").exists, 20, "munged")
        start("slurmctld", "-D")
        start("slurmd", "-D")
        until(lambda: "idle" in said_by("sinfo", "--noheader", "--format=%T"), 60, "an idle node")
        yield at
    finally:
        said_by("scancel", "--full", f"--user={os.environ.get('USER', 'root')}")
        until(lambda: not said_by("squeue", "--noheader").strip(), 60, "the end of all jobs")
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before
        shutil.rmtree(at)


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
