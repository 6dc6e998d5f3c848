"""Runs a command and prints what the kernel counted of it, as JSON: measured.py FILE COMMAND…

A small process of its own, because a child's peak memory starts with that of the process that it was forked from. The child's
input and output figures are read after its end and before it is taken off the list of processes.
"""

import json
import os
import pathlib
import sys


def main() -> int:
    pid = os.spawnv(os.P_NOWAIT, sys.argv[2], sys.argv[2:])
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    io = dict(line.split(": ") for line in pathlib.Path(f"/proc/{pid}/io").read_text().splitlines())
    _, status, usage = os.wait4(pid, 0)
    counted = {"peak_bytes": usage.ru_maxrss * 1024, "read_bytes": int(io["read_bytes"]), "write_bytes": int(io["write_bytes"])}
    pathlib.Path(sys.argv[1]).write_text(json.dumps(counted))
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
