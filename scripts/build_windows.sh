#!/usr/bin/env bash
# Cross-compiles the command line for Windows into build/windows and packs it into dist/: detent.exe and the kernels of fine-tuning
# as a .zip, and with the Python package as a wheel. `scripts/setup.sh windows` lays down what it needs.
set -euo pipefail
cd "$(dirname "$0")/.."

tree=$PWD/build/windows
if command -v ninja >/dev/null; then export CMAKE_GENERATOR=Ninja; fi
cmake -S . -B "$tree" --toolchain "$PWD/cmake/windows.cmake" -DDETENT_FETCH=ALL -DDETENT_URING=OFF -DDETENT_MPI=OFF \
  -DDETENT_CUDA=OFF -DDETENT_EXTENSION=OFF -DDETENT_TESTS=OFF -DDETENT_BENCH=OFF -DDETENT_WERROR="${WERROR:-OFF}" --log-level=WARNING
cmake --build "$tree" --parallel "${JOBS:-2}" --target detent
mkdir -p dist
tools=build/wheel/windows-tools
[ -x $tools/bin/python ] || python3 -m venv $tools
$tools/bin/pip install -q --disable-pip-version-check wheel==0.48.0 pyproject-metadata==0.12.1
$tools/bin/python scripts/windows_wheel.py "$tree" dist
