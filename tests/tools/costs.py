#!/usr/bin/env python3
"""What tests and compiled units cost.

    costs.py show BUILD          the forty dearest tests and units of the last runs, and sums by kind
    costs.py write BUILD         writes tests/costs.tsv: seconds of processors of each test of CTest, after a run on a quiet machine
    costs.py slice BUILD K/N     the K-th of N parts of the full set, equally dear, as a regular expression for `ctest -R`

Sources: build/tests/costs/*.json (sets_and_costs.py for pytest, GoogleTest's own report), CTest's cost data, and ninja's log."""

import json
import pathlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

TABLE = pathlib.Path(__file__).resolve().parents[1] / "costs.tsv"
SHOWN = 40
UNKNOWN = 10.0  # seconds, of a test that is not in the table yet

Costs = dict[str, float]


def cases(build: pathlib.Path) -> dict[str, Costs]:
    """For each test of CTest that reports its cases: their seconds, of processors where pytest ran them, else by the clock."""
    found: dict[str, Costs] = {}
    for path in sorted((build / "tests" / "costs").glob("*.json")):
        told = json.loads(path.read_text())
        if "testsuites" in told:
            runs = ((suite["name"], case) for suite in told["testsuites"] for case in suite["testsuite"])
            found[path.stem] = {f"{suite}.{case['name']}": float(case["time"].rstrip("s")) for suite, case in runs}
        else:
            found[path.stem] = {name: cost["processor"] for name, cost in told.items()}
    return found


def by_ctest(build: pathlib.Path) -> Costs:
    """Seconds by the clock of each test of CTest in its last run."""
    path = build / "Testing" / "Temporary" / "CTestCostData.txt"
    rows = (line.split() for line in path.read_text().partition("---")[0].splitlines()) if path.is_file() else []
    return {name: float(seconds) for name, runs, seconds in rows if int(runs) > 0}


def units(build: pathlib.Path) -> Costs:
    """Seconds by the clock of each output of the last build that ninja's log knows."""
    path = build / ".ninja_log"
    rows = (line.split("\t") for line in path.read_text().splitlines()[1:]) if path.is_file() else []
    return {row[3]: (int(row[1]) - int(row[0])) / 1000 for row in rows}


def known() -> Costs:
    rows = (line.split("\t") for line in TABLE.read_text().splitlines())
    return {name: float(seconds) for name, seconds in rows}


def kind(name: str) -> str:
    """Of a test: unit, e2e, python, …; of a unit: its folder."""
    if "/" in name:
        return re.sub(r"CMakeFiles/[^/]*\.dir/", "", name).rpartition("/")[0] or "programs and libraries"
    first = name.split(".")[0]
    return f"{first}{' (full set)' if name.endswith('.full') else ''}" if "." in name else "unit"


def print_costs(title: str, costs: Costs, sums: Iterable[tuple[str, float]]) -> None:
    if not costs:
        print(f"{title}: none recorded")
        return
    print(f"{title}: {sum(costs.values()):.0f} s in all")
    for name, seconds in sorted(costs.items(), key=lambda row: -row[1])[:SHOWN]:
        print(f"  {seconds:8.1f}  {name}")
    totals: Counter[str] = Counter()
    for name, seconds in sums:
        totals[kind(name)] += seconds
    print("  by kind: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in totals.most_common()))


def show(build: pathlib.Path) -> None:
    tests = by_ctest(build)
    each = {f"{suite}: {name}": seconds for suite, costs in cases(build).items() for name, seconds in costs.items()}
    print_costs("tests of CTest, seconds by the clock", tests, tests.items())
    print_costs(
        "cases, seconds of processors (unit tests: by the clock)", each, ((name.split(":")[0], s) for name, s in each.items())
    )
    compiled = units(build)
    print_costs("compiled and linked, seconds by the clock with others beside", compiled, compiled.items())


def write(build: pathlib.Path) -> None:
    costs = known() | by_ctest(build) | {name: sum(of_cases.values()) for name, of_cases in cases(build).items()}
    there = {test["name"] for test in of_ctest(build)}
    TABLE.write_text("".join(f"{name}\t{costs[name]:.1f}\n" for name in sorted(there & costs.keys())))


def of_ctest(build: pathlib.Path, *options: str) -> list[dict[str, str]]:
    command = ["ctest", "--test-dir", str(build), "--show-only=json-v1", *options]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["tests"]


def slice_of(build: pathlib.Path, part: str) -> str:
    if not (match := re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", part)) or int(match[1]) > int(match[2]):
        sys.exit(f"costs.py: '{part}' is no part of a whole: use SLICE=K/N, as in 3/5")
    number, count = int(match[1]), int(match[2])
    costs = known()
    parts: list[list[str]] = [[] for _ in range(count)]
    sums = [0.0] * count
    names = {test["name"]: costs.get(test["name"], UNKNOWN) for test in of_ctest(build, "-L", "^full$")}
    for name, seconds in sorted(names.items(), key=lambda row: (-row[1], row[0])):
        least = sums.index(min(sums))
        parts[least].append(name)
        sums[least] += seconds
    return f"^({'|'.join(re.escape(name) for name in parts[number - 1])})$"


def main(verb: str, build: str, *rest: str) -> None:
    if verb == "slice":
        print(slice_of(pathlib.Path(build), *rest))
    else:
        {"show": show, "write": write}[verb](pathlib.Path(build), *rest)


if __name__ == "__main__":
    main(*sys.argv[1:])
