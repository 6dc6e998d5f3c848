#!/usr/bin/env bash
# Builds detent and its unit tests for ARM into build/aarch64, runs them in an emulator, and compares what detent writes and tells there
# with what build/detent does (same_bytes.py and test_jobs.py in tests/emulation). An hour or more, most of it the unit tests.
# `scripts/test_aarch64.sh ROOM...` runs the unit tests of these rooms alone, `scripts/test_aarch64.sh jobs` the comparisons.
set -euo pipefail
cd "$(dirname "$0")/.."

# What the emulator does otherwise than a kernel: it holds no program to a limit of memory, leaves out MAP_POPULATE, and has a /proc
# of its own that can be written to.
NOT_EMULATED=(BlockCache.RunsOutOfMemoryAndGoesOn Meters.{MemoryFollowsAnonymousPages,FilePagesAreNotAnonymous,PeakOutlivesTheMemory}
  Meters.LiveDescendantsAreCounted Profiler.{SamplesThePeakInsideAStage,KernelKnowsThePeakWithoutSampling,TimelineFollowsMemory}
  Machine.OddArgumentsAreNoError)
tree=$PWD/build/aarch64
cmake -S . -B "$tree" --toolchain "$PWD/cmake/aarch64.cmake" -DDETENT_FETCH=ALL -DDETENT_URING=OFF -DDETENT_BENCH=OFF \
  -DDETENT_MPI=OFF -DDETENT_CUDA=OFF -DDETENT_EXTENSION=OFF -DDETENT_WERROR="${WERROR:-OFF}" --log-level=WARNING
targets=() tests=("${@/#/$tree/tests/test_}")
case $* in
  jobs) targets=(--target detent) tests=() ;;
  ?*) targets=(--target "${@/#/test_}") ;;
esac
cmake --build "$tree" --parallel "${JOBS:-2}" "${targets[@]}"

export TMPDIR=$tree/tmp XDG_CACHE_HOME=$tree/tmp/cache ORT_DISABLE_TELEMETRY=1 PYTHONDONTWRITEBYTECODE=1
export DETENT_ONNXRUNTIME=$tree/libonnxruntime.so DETENT_MODELS=$PWD/build/models DETENT_PYTHON=$PWD/build/venv/bin/python
mkdir -p "$TMPDIR"
failed=()
[ $# -gt 0 ] || for program in "$tree"/tests/test_*; do
  if [ -f "$program" ] && [ -x "$program" ]; then tests+=("$program"); fi
done
for program in "${tests[@]}"; do
  echo "== $(basename "$program")"
  scripts/emulate "$program" --gtest_brief=1 --gtest_filter="-$(IFS=:; echo "${NOT_EMULATED[*]}")" || failed+=("$(basename "$program")")
done
if [ $# -eq 0 ] || [ "$*" = jobs ]; then
  printf '#!/bin/sh\nexec "%s/scripts/emulate" "%s/detent" "$@"\n' "$PWD" "$tree" >"$TMPDIR/detent"
  chmod +x "$TMPDIR/detent"
  unset DETENT_ONNXRUNTIME  # each takes the runtime beside it
  build/venv/bin/python tests/emulation/same_bytes.py build/detent "$TMPDIR/detent" build/models "$TMPDIR/same_bytes" || failed+=(same_bytes)
  DETENT_EMULATED=$TMPDIR/detent build/venv/bin/python -m pytest -q -p no:cacheprovider --basetemp "$TMPDIR/jobs" tests/emulation ||
    failed+=(jobs)
fi
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
