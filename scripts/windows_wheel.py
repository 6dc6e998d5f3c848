#!/usr/bin/env python3
"""windows_wheel.py BUILT FOLDER: packs detent.exe and its plugin of the folder BUILT into FOLDER, as a .zip with the licence and as
a wheel, detent-VERSION-py3-none-win_amd64.whl, whose Python package runs the command (python/over_command). Tells their paths.
Needs the packages wheel and pyproject-metadata."""

import pathlib
import re
import sys
import tomllib
import zipfile

import pyproject_metadata
from wheel.wheelfile import WheelFile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARIES = ["detent.exe", "libdetent_cpu.dll"]
TAG = "py3-none-win_amd64"


def main(built: pathlib.Path, folder: pathlib.Path) -> None:
    version = re.search(r"project\(detent VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    archive = folder / f"detent-{version}-windows-x86_64.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in (*(built / name for name in BINARIES), ROOT / "LICENSE"):
            packed.write(file, f"detent/{file.name}")

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    metadata = pyproject_metadata.StandardMetadata.from_pyproject(project, ROOT)
    metadata.version = version
    wheel, places = folder / f"detent-{version}-{TAG}.whl", f"detent-{version}.dist-info"
    wheel.unlink(missing_ok=True)
    with WheelFile(str(wheel), "w") as packed:
        for file in sorted((ROOT / "python/detent").rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith("_core."):
                packed.write(str(file), str(file.relative_to(ROOT / "python")))
        packed.write(str(ROOT / "python/over_command/_core.py"), "detent/_core.py")
        for name in BINARIES:
            packed.write(str(built / name), f"detent/{name}")
        packed.write(str(ROOT / "LICENSE"), f"{places}/licenses/LICENSE")
        packed.writestr(f"{places}/METADATA", str(metadata.as_rfc822()))
        packed.writestr(f"{places}/entry_points.txt", "[console_scripts]\ndetent = detent.__main__:main\n")
        packed.writestr(f"{places}/WHEEL", f"Wheel-Version: 1.0\nGenerator: detent\nRoot-Is-Purelib: false\nTag: {TAG}\n")
    print(archive, wheel, sep="\n")


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
