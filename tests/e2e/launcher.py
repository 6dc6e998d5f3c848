"""Detent under mpirun."""

import os
import shutil
import subprocess

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


def mpirun(ranks: int, *arguments: object, program: Path = DETENT, cwd: Path | None = None, **variables: str) -> support.Ran:
    """Runs `detent ARGUMENTS` in so many processes; variables go to the environment. Skips the test where there is no
    MPI."""
    launcher = os.environ.get("MPIEXEC") or shutil.which("mpirun")
    if not launcher or not (DETENT.parent / "libdetent_mpi.so").exists():
        pytest.skip("detent was built without MPI")
    result = subprocess.run(
        list(map(str, [launcher, "-n", ranks, program, *arguments])),
        env={**os.environ, **SETTINGS, **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return support.notes_apart(result)


def by_rank(script: Path, rank: int, first: str) -> Path:
    """A program that is detent, but on this rank first does something else."""
    script.write_text(f"""#!/bin/sh
[ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = {rank} ] && {first}
exec {DETENT} "$@"
""")
    script.chmod(0o755)
    return script
