#!/usr/bin/env bash
# Runs build/windows/detent.exe in Wine: what it writes beside what build/detent writes (tests/emulation/same_bytes.py), and what it
# refuses (tests/emulation/windows.py). Some minutes; not part of `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$PWD/build/windows/tests
mkdir -p "$work"
printf '#!/bin/sh\nexec "%s/scripts/emulate_windows" "%s/build/windows/detent.exe" "$@"\n' "$PWD" "$PWD" >"$work/detent"
chmod +x "$work/detent"
unset DETENT_ONNXRUNTIME  # each takes the runtime beside it
build/venv/bin/python tests/emulation/windows.py "$work/detent" build/models "$work/windows"
build/venv/bin/python tests/emulation/same_bytes.py build/detent "$work/detent" build/models "$work/same_bytes" "$@"
