"""Detent under mpirun."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
import support
from support import DETENT, Path

# What Open MPI 4 and 5 want in a container of few cores; other MPIs ignore it.
SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def ranks_of(launcher: int) -> list[int]:
    """What it started and has not ended: zombies have, and what they had locked is free."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = status.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == launcher and state not in "ZX":
            found.append(int(status.parent.name))
    return [process for process in found if process != launcher]


def mpirun(ranks: int, *arguments: object, program: Path = DETENT, cwd: Path | None = None, **variables: str) -> support.Ran:
    """Runs `detent ARGUMENTS` in so many processes; variables go to the environment. Skips the test where there is no
    MPI."""
    launcher = os.environ.get("MPIEXEC") or shutil.which("mpirun")
    if not launcher or not (DETENT.parent / "libdetent_mpi.so").exists():
        pytest.skip("detent was built without MPI")
    command = list(map(str, [launcher, "-n", ranks, program, *arguments]))
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, **SETTINGS, **variables}
    with subprocess.Popen(command, env=environment, cwd=cwd, start_new_session=True, **streams) as launched:
        stdout, stderr = output_of(launched)
    return support.notes_apart(subprocess.CompletedProcess(command, launched.returncode, stdout, stderr))


def output_of(launched: subprocess.Popen[str]) -> tuple[str, str]:
    """Of a launcher and all its ranks. It does not wait for those that it kills, and may itself wait for ever when all have
    ended, as after a death while they were joining."""
    end, alone = time.monotonic() + 200, 0
    while True:
        try:
            told = launched.communicate(timeout=5)
            break
        except subprocess.TimeoutExpired:
            alone = 0 if ranks_of(launched.pid) else alone + 1
            if alone == 6 or time.monotonic() > end:
                launched.kill()
    while left := ranks_of(launched.pid):
        if time.monotonic() > end:
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            pytest.fail("ranks live on")
        time.sleep(0.01)
    return told


def refused(says: str, ranks: int, *arguments: object, **options: object) -> None:
    """Runs what must fail with such an error. The launcher may have ended before it has read all that a rank said when it
    failed: then once more."""
    for _ in range(5):
        result = mpirun(ranks, *arguments, **options)
        assert result.returncode != 0
        if re.search(r"detent: error: (?!.*: interrupted)", result.stderr):
            break
    assert re.search(says, result.stderr), result.stderr


def by_rank(script: Path, rank: int, first: str) -> Path:
    """A program that is detent, but on this rank first does something else."""
    script.write_text(f"""#!/bin/sh
[ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = {rank} ] && {first}
exec {DETENT} "$@"
""")
    script.chmod(0o755)
    return script
