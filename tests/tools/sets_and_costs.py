"""A pytest plugin (-p sets_and_costs) with the two sets of tests, and what each test takes.

A test marked `full` is of the full set alone (`make test-all`). Of one marked `sampled(N)` the first set (`make test`) has N of its
parameter sets, evenly spread; the others are marked `full`.

Into the file that DETENT_COSTS names it writes, as JSON, seconds by the clock and of processors of each test, with those of the
processes that it started and waited for."""

import collections
import json
import os
import pathlib
import resource
import time
from collections.abc import Iterator

import pytest


def processor_seconds() -> float:
    uses = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


class Recorder:
    def __init__(self, target: pathlib.Path) -> None:
        self.target = target
        self.costs: dict[str, dict[str, float]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        clock, processor = time.monotonic(), processor_seconds()
        result = yield
        name = f"{item.path.stem.removeprefix('test_')}::{item.name}"
        self.costs[name] = {"seconds": round(time.monotonic() - clock, 3), "processor": round(processor_seconds() - processor, 3)}
        return result

    def pytest_sessionfinish(self) -> None:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.target.write_text(json.dumps(self.costs, indent=0))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sampled = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            sampled[item.nodeid.partition("[")[0]].append(item)
    for group in sampled.values():
        count = min(len(group), group[0].get_closest_marker("sampled").args[0])
        first = {len(group) * i // count for i in range(count)}
        for i, item in enumerate(group):
            if i not in first:
                item.add_marker("full")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: of the full set (make test-all), not of the first (make test)")
    config.addinivalue_line("markers", "sampled(count): so many of its parameter sets are in the first set")
    if target := os.environ.get("DETENT_COSTS"):
        config.pluginmanager.register(Recorder(pathlib.Path(target)))
