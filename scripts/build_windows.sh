#!/usr/bin/env bash
# Cross-compiles the command line for Windows into build/windows and packs it into dist/: detent.exe, the kernels of fine-tuning,
# the licence. `scripts/setup.sh windows` lays down what it needs.
set -euo pipefail
cd "$(dirname "$0")/.."

tree=$PWD/build/windows
if command -v ninja >/dev/null; then export CMAKE_GENERATOR=Ninja; fi
cmake -S . -B "$tree" --toolchain "$PWD/cmake/windows.cmake" -DDETENT_FETCH=ALL -DDETENT_URING=OFF -DDETENT_MPI=OFF \
  -DDETENT_CUDA=OFF -DDETENT_EXTENSION=OFF -DDETENT_TESTS=OFF -DDETENT_BENCH=OFF -DDETENT_WERROR="${WERROR:-OFF}" --log-level=WARNING
cmake --build "$tree" --parallel "${JOBS:-2}" --target detent
version=$(sed -n 's/^project(detent VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
mkdir -p dist
build/venv/bin/python - "$tree" "dist/detent-$version-windows-x86_64.zip" <<'END'
import pathlib, sys, zipfile
tree = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(sys.argv[2], "w", zipfile.ZIP_DEFLATED) as archive:
    for file in (tree / "detent.exe", tree / "libdetent_cpu.dll", pathlib.Path("LICENSE")):
        archive.write(file, f"detent/{file.name}")
END
echo "dist/detent-$version-windows-x86_64.zip"
