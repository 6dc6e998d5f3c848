#!/usr/bin/env python3
"""Small graphs and trained models in every form: is what detent says of the files that it writes true of them?

    check_claims.py [--minutes M] [--seed S] [--graph NAME]… [--form NAME]… [--trained] [--folder DIR]… [--refusals] [--list]

Each file runs in three versions of ONNX Runtime (`make runtimes`), and its accuracy, size and share of integers are found
again by numpy alone. --trained takes the models in build/models (`make models`) instead of the small graphs, --folder a model with
its samples: DIR/model.onnx and DIR/calibration/*.npz. Forms that every graph is tried in come first, then others at random until
the time is up. What is wrong is listed, then comes a table. Ends with 1 where anything is. For a Python that has onnx, numpy and
onnxruntime, such as build/venv's."""

import argparse
import collections
import functools
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "claims"))

import of_layers  # noqa: E402
import of_values  # noqa: E402
import trained  # noqa: E402
from case import Case  # noqa: E402
from claims import VERSIONS, Judge, Verdict, Worker  # noqa: E402
from forms import ALWAYS, FORMS  # noqa: E402

MODELS = Path(__file__).resolve().parents[1] / "build" / "models"
GRAPHS = of_layers.GRAPHS | of_values.GRAPHS | trained.fetched(MODELS)


def graphs_of(options: argparse.Namespace) -> dict[str, Callable[[], Case]]:
    chosen = {name: make for name, make in GRAPHS.items() if name.startswith("trained ") == options.trained}
    if options.graph:
        chosen = {name: GRAPHS[name] for name in options.graph}
    given = {str(folder): functools.partial(trained.of_folder, folder) for folder in options.folder}
    return given if given and not (options.trained or options.graph) else chosen | given


def order(graphs: list[str], options: argparse.Namespace) -> list[tuple[str, str]]:
    """Of graph and form: those that are always tried, then all others, mixed."""
    forms = options.form or list(FORMS)
    mixed = random.Random(options.seed)
    always = [(g, f) for g in graphs for f in ALWAYS if f in forms]
    others = [(g, f) for g in graphs for f in forms if f not in ALWAYS]
    mixed.shuffle(others)
    return [*always, *others]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--graph", action="append", choices=GRAPHS, metavar="NAME")
    parser.add_argument("--form", action="append", choices=FORMS, metavar="NAME")
    parser.add_argument("--trained", action="store_true", help="the models in build/models instead of the small graphs")
    parser.add_argument("--folder", action="append", type=Path, default=[], metavar="DIR")
    parser.add_argument("--refusals", action="store_true", help="list these as well")
    parser.add_argument("--list", action="store_true", help="only print the names of graphs and forms")
    options = parser.parse_args()
    if options.list:
        print("\n".join([f"{len(GRAPHS)} graphs", *GRAPHS, f"{len(FORMS)} forms", *FORMS]))
        return
    graphs = graphs_of(options)
    workers = {version: Worker(version) for version in VERSIONS}
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    until, judges = time.monotonic() + 60 * options.minutes, {}
    with tempfile.TemporaryDirectory(prefix="detent-claims-") as folder:
        for graph, form in order(list(graphs), options):
            if time.monotonic() > until:
                break
            if graph not in judges:
                place = Path(folder) / str(len(judges))
                place.mkdir()
                judges[graph] = Judge(graphs[graph](), place, workers)
            try:
                verdict = judges[graph].judged(form)
            except subprocess.TimeoutExpired:
                verdict = Verdict("wrong", "no end within its time")
            counts[form][verdict.kind] += 1
            if verdict.kind == "wrong" or (verdict.kind == "refused" and options.refusals):
                print(f"{verdict.kind}: {graph} | {form} | {verdict.text}", flush=True)
    kinds = ("right", "refused", "wrong")
    print("| form | right | refused in words | wrong |\n|---|---|---|---|")
    for form in FORMS:
        if form in counts:
            print(f"| {form} | {' | '.join(str(counts[form][kind]) for kind in kinds)} |")
    print(f"| all | {' | '.join(str(sum(c[kind] for c in counts.values())) for kind in kinds)} |")
    sys.exit(any(c["wrong"] for c in counts.values()))


if __name__ == "__main__":
    main()
