"""How long imports take: import_time.py PYTHON=MODULE…; medians over seven processes each, in turns."""

import statistics
import subprocess
import sys

ROUNDS = 7
CODE = "import time; begun = time.perf_counter(); import {}; print(time.perf_counter() - begun)"


def seconds(python: str, module: str) -> float:
    out = subprocess.run([python, "-c", CODE.format(module)], capture_output=True, text=True, check=True).stdout
    return float(out.split()[-1])


def main() -> None:
    pairs = [argument.split("=") for argument in sys.argv[1:]]
    found: dict[str, list[float]] = {module: [] for _, module in pairs}
    for _ in range(ROUNDS):
        for python, module in pairs:
            found[module].append(seconds(python, module))
    for module, times in found.items():
        print(f"{module:30} median {statistics.median(times):.3f} s, least {min(times):.3f} s")


main()
