#!/usr/bin/env python3
"""What each setting of ONNX Runtime costs: bench_inference with one setting changed at a time, interleaved, medians.

settings.py --bench build/bench_inference MODEL DATA/bin [--threads 1 2] [--rounds 3] [--repeat-to N] [--only TEXT ...]"""

import argparse
import json
import statistics
import subprocess  # only the standard library, as in run.py

VARIANTS = {
    "default": "",
    "default, opt extended": "--opt extended",
    "default, opt basic": "--opt basic",
    "default, prepack off": "--prepack 0",
    "default, pattern off": "--pattern 0",
    "default, arena off": "--arena 0",
    "default, arena same": "--arena same",
    "default, arena same, pattern off": "--arena same --pattern 0",
    "default, spin off": "--spin 0",
    "default, arena+pattern off, mmap 64k": "--arena 0 --pattern 0 --mmap-threshold 65536",
    "opt basic, prepack+pattern off": "--opt basic --prepack 0 --pattern 0",
    "tuned": "--tuned",
    "tuned, opt all": "--tuned --opt all",
    "tuned, prepack on": "--tuned --prepack 1",
    "tuned, pattern on": "--tuned --pattern 1",
    "tuned, arena on": "--tuned --arena 1",
    "tuned, arena same": "--tuned --arena same",
    "tuned, mmap glibc": "--tuned --mmap-threshold 0",
    "tuned, mmap 4M": "--tuned --mmap-threshold 4194304",
    "tuned, mmap 16M": "--tuned --mmap-threshold 16777216",
}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("data")
    p.add_argument("--bench", default="build/bench_inference")
    p.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--repeat-to", type=int, default=0)
    p.add_argument("--only", nargs="+", default=[""], help="default, and variants whose name contains one of these")
    a = p.parse_args()
    names = [n for n in VARIANTS if n == "default" or any(text in n for text in a.only)]
    runs = {}
    for _ in range(a.rounds):
        for threads in a.threads:
            for name in names:
                command = [a.bench, a.model, a.data, "--threads", str(threads), "--repeat-to", str(a.repeat_to)]
                out = subprocess.run(command + VARIANTS[name].split(), check=True, capture_output=True, text=True).stdout
                runs.setdefault((threads, name), []).append(json.loads(out))
    print("| threads | setting | loop s | loop CPU s | wall ÷ default | CPU ÷ default | session s | peak MB |")
    print("|---|---|---|---|---|---|---|---|")
    for threads in a.threads:
        base = runs[threads, "default"]
        for name in names:
            rows = runs[threads, name]
            median = lambda key: statistics.median(r[key] for r in rows)
            # the ratio within a round, so that a busy minute hurts both sides alike
            ratio = lambda key: statistics.median(r[key] / b[key] for r, b in zip(rows, base))
            print(
                f"| {threads} | {name} | {median('loop_s'):.3f} | {median('loop_cpu_s'):.3f} | {ratio('loop_s'):.2f} | "
                f"{ratio('loop_cpu_s'):.2f} | {median('session_s'):.2f} | {median('peak_rss_mb'):.0f} |"
            )


if __name__ == "__main__":
    main()
