#!/usr/bin/env bash
# The steps of action.yml: quantizes MODEL to OUTPUT, writes the table of --summary md to $GITHUB_STEP_SUMMARY, compares both
# on HELD_BACK, and ends with detent's exit code. Everything comes from the environment; action.yml says what each variable is.
set -euo pipefail

detent=${DETENT:-detent}
summary=${GITHUB_STEP_SUMMARY:-/dev/stdout}
read -ra options <<<"${OPTIONS:-}"
[ -z "${CALIBRATION_DATA:-}" ] || options+=(--calibration-data "$CALIBRATION_DATA")

table=$(mktemp)
trap 'rm -f "$table"' EXIT
"$detent" quantize "$MODEL" -o "$OUTPUT" "${options[@]}" --summary md >"$table"

code=0
if [ -n "${HELD_BACK:-}" ]; then
  report=$("$detent" compare "$MODEL" "$OUTPUT" --calibration-data "$HELD_BACK" --outputs-only --min-sqnr "$MIN_SQNR" 2>&1) || code=$?
  { echo; echo '```'; echo "$report"; echo '```'; } >>"$table"
fi
cat "$table" >>"$summary"
if [ "${COMMENT:-false}" = true ] && [ -n "${PULL_REQUEST:-}" ]; then
  gh pr comment "$PULL_REQUEST" --body-file "$table"
fi
exit "$code"
