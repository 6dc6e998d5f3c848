#!/usr/bin/env python3
"""Ranks on hosts that are network namespaces of this machine, joined by a network of limited rate, beside `detent plan`.

network.py MODEL DATA [--ranks 1 2 4] [--rate 200Mbit] [options of quantize …]

Each host has an address of its own, a virtual cable to a bridge, and one rank with one thread. Linux holds the rate at both
ends of each cable (tc, token bucket). Cores are those of this machine, so that the time of computing is that of processors,
of the rank that takes most; what the network takes is the difference of two runs, with the limit and without. Needs root,
iproute2 and Open MPI. All traffic stays in the namespaces, which are gone at the end."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DETENT = Path(os.environ.get("DETENT", Path(__file__).parent.parent / "build" / "detent"))
NETWORK = "10.77.0"
# Runs detent, and leaves the seconds of processors that it took.
RANK = """import json, os, resource, subprocess, sys
code = subprocess.run(sys.argv[2:], check=False).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(f"{sys.argv[1]}.{os.environ['OMPI_COMM_WORLD_RANK']}", "w") as file:
    json.dump(used.ru_utime + used.ru_stime, file)
sys.exit(code)
"""


def run(*words: object) -> str:
    return subprocess.run([*map(str, words)], check=True, capture_output=True, text=True).stdout


class Hosts:
    """So many, and a bridge between them."""

    def __init__(self, count: int, folder: Path) -> None:
        self.names = [f"detent-{os.getpid()}-{i}" for i in range(count)]
        self.bridge = f"detent-{os.getpid()}-bridge"
        self.folder = folder

    def __enter__(self) -> "Hosts":
        for name in (self.bridge, *self.names):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", self.bridge, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.bridge, "link", "set", "bridge", "up")
        for i, name in enumerate(self.names):
            run("ip", "link", "add", "cable", "netns", name, "type", "veth", "peer", "name", f"port{i}", "netns", self.bridge)
            run("ip", "-n", self.bridge, "link", "set", f"port{i}", "master", "bridge", "up")
            run("ip", "-n", name, "address", "add", f"{self.address(i)}/24", "dev", "cable")
            run("ip", "-n", name, "link", "set", "cable", "up")
        (self.folder / "agent").write_text(f"""#!/bin/sh
n=${{1##*.}}; shift
exec ip netns exec detent-{os.getpid()}-$((n - 1)) unshare --uts sh -c "hostname host$n; $*"
""")
        (self.folder / "agent").chmod(0o755)
        (self.folder / "rank.py").write_text(RANK)
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*self.names, self.bridge):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def address(self, host: int) -> str:
        return f"{NETWORK}.{host + 1}"

    def limit(self, rate: str) -> None:
        ends = [(name, "cable") for name in self.names] + [(self.bridge, f"port{i}") for i in range(len(self.names))]
        for name, device in ends:
            shape = ["rate", rate, "burst", "256kb", "latency", "400ms"]
            run("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *shape)

    def mpirun(self, ranks: int, command: list[str]) -> tuple[float, float, dict]:
        """Seconds, those of processors of the slowest rank, and what rank 0 prints."""
        hosts = ",".join(f"{self.address(i)}:1" for i in range(ranks))
        settings = {"btl": "tcp,self", "btl_tcp_if_include": f"{NETWORK}.0/24", "oob_tcp_if_include": f"{NETWORK}.0/24"}
        settings |= {"plm_rsh_agent": str(self.folder / "agent"), "plm_rsh_no_tree_spawn": "1"}
        words = ["mpirun", "--allow-run-as-root", "--host", hosts, "-n", str(ranks), "--bind-to", "none"]
        words += [word for name, value in settings.items() for word in ("--mca", name, value)]
        words += [sys.executable, str(self.folder / "rank.py"), str(self.folder / "used"), *command]
        start = time.monotonic()
        enter = ["ip", "netns", "exec", self.names[0], "unshare", "--uts", "sh", "-c", 'hostname host1; exec "$@"', "sh"]
        ran = subprocess.run([*enter, *words], capture_output=True, text=True, check=False)
        seconds = time.monotonic() - start
        if ran.returncode != 0:
            sys.exit(ran.stderr)
        used = [json.loads((self.folder / f"used.{rank}").read_text()) for rank in range(ranks)]
        return seconds, max(used), json.loads(ran.stdout)


def plan(model: str, options: list[str], ranks: int, rate: str) -> dict:
    told = run(DETENT, "plan", model, *options, "--ranks", ranks, "--network", rate, "--json")
    return next(t for t in json.loads(told)["ranks"] if t["ranks"] == ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rate", default="200Mbit")
    a, options = parser.parse_known_args()
    options = ["--calibration-data", a.data, "--threads", "1", *options]
    with tempfile.TemporaryDirectory() as folder:
        command = [str(DETENT), "quantize", a.model, "-o", f"{folder}/q.onnx", "--no-bench", "--json", *options]
        planned = {ranks: plan(a.model, options, ranks, a.rate) for ranks in a.ranks}
        unbounded = {ranks: plan(a.model, options, ranks, "1000000Gbit") for ranks in a.ranks}
        with Hosts(max(a.ranks), Path(folder)) as hosts:
            free = {ranks: hosts.mpirun(ranks, command) for ranks in a.ranks}
            hosts.limit(a.rate)
            limited = {ranks: hosts.mpirun(ranks, command) for ranks in a.ranks}
    print("| ranks | slowest rank | network | MiB received | efficiency | planned: time | network | MiB received | efficiency |")
    print("|---|---|---|---|---|---|---|---|---|")
    alone = None
    for ranks in a.ranks:
        computing, network = free[ranks][1], max(limited[ranks][0] - free[ranks][0], 0.0) if ranks > 1 else 0.0
        alone = alone or computing
        expected = sum(stage["received_bytes"] for stage in planned[ranks]["stages"])
        received = limited[ranks][2].get("received_bytes", 0)
        cells = [f"{ranks}", f"{computing:.1f} s", f"{network:.1f} s", f"{received / 2**20:.1f}"]
        cells += [f"{100 * alone / ranks / (computing + network):.0f} %", f"{planned[ranks]['seconds']:.1f} s"]
        cells += [
            f"{planned[ranks]['seconds'] - unbounded[ranks]['seconds']:.1f} s",
            f"{expected / 2**20:.1f}",
            f"{100 * planned[ranks]['efficiency']:.0f} %",
        ]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
