#!/usr/bin/env bash
# compile.sh TARGET...: builds them in build/. What ninja says of each file shows as one line that counts; where the output is no
# terminal, as five lines. Warnings and errors show as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
terminal=0
[ -t 1 ] && terminal=1
cmake --build build --target "$@" | awk -v terminal=$terminal '
  /^\[[0-9]+\/[0-9]+\] / {
    split(substr($1, 2), count, /[\/\]]/)
    step = int(4 * count[1] / count[2])
    if (terminal) printf "\rcompiling: %d of %d\033[K", count[1], count[2]
    else if (count[2] > 8 && (count[1] == 1 || step > last)) printf "compiling: %d of %d\n", count[1], count[2]
    last = step; counted = terminal; fflush(); next
  }
  /no work to do/ { next }
  { if (counted) printf "\n"; counted = 0; print; fflush() }
  END { if (counted) printf "\r\033[K" }'
