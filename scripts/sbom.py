#!/usr/bin/env python3
"""sbom.py VERSION: what a wheel of detent contains, as CycloneDX: the libraries that cmake/ downloads, with their checksums."""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
CALL = re.compile(r"detent_download\((?P<name>\S+) (?P<file>\S+)\s+(?P<sha256>[0-9a-f]{64})")
MODULE = re.compile(r"^    (?P<name>\S+) (?P<file>\S+\.deb) (?P<sha256>[0-9a-f]{64})", re.MULTILINE)
# Headers of programs that are there when detent runs.
OUTSIDE = {"onnxruntime-headers", "python3.11-headers", "python3.13-headers"}


def components() -> list[dict[str, object]]:
    found = []
    for path in sorted([*(ROOT / "cmake").glob("*.cmake"), ROOT / "python" / "CMakeLists.txt"]):
        text = path.read_text()
        entries = [(m["name"], m["file"], m["sha256"]) for m in CALL.finditer(text) if not m["name"].startswith("$")]
        entries += [(f"d3-{m['name']}", m["file"], m["sha256"]) for m in MODULE.finditer(text)]
        for name, file, sha256 in entries:
            if name in OUTSIDE:
                continue
            archive = pathlib.PurePosixPath(file).name
            version = re.search(r"really([0-9.]*[0-9])", archive) or re.search(r"_([0-9.]*[0-9])", archive)
            found.append(
                {
                    "type": "library",
                    "name": name,
                    "version": version[1] if version else "",
                    "hashes": [{"alg": "SHA-256", "content": sha256}],
                    "externalReferences": [{"type": "distribution", "url": f"http://deb.debian.org/debian/{file}"}],
                }
            )
    return found


def main() -> None:
    (version,) = sys.argv[1:]
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "detent", "version": version}},
        "components": components(),
    }
    json.dump(bom, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
