#!/usr/bin/env bash
# Runs every test that needs a GPU, then again under compute-sanitizer where it is installed, and
# writes one JSON record. Needs nothing but the built binary, a driver and a shell:
#
#   make gpu
#   MOXIE_COMMIT=$(git rev-parse HEAD) tools/gpu/check.sh build/gpu/moxie_gpu_tests OUT_FOLDER
#
# OUT_FOLDER gets gpu_check.json (a record for docs/records/) and the logs. Ends with 0 only if
# everything that ran passed and the tests did run. Leaves the device's settings alone.
set -uo pipefail

tests=${1:-build/gpu/moxie_gpu_tests}
out=${2:-build/gpu/check}
# The sanitizers slow kernels down, racecheck manyfold: the large cases are left to the plain run,
# and racecheck takes a few that together pass every barrier.
memcheck_filter=-*Large*:*FourGigabytes*
racecheck_filter=Embed*Narrow*:Norm*InPlace*:Sample*Ties*Lower*:Sample*Strange*:Sample*MaskOfOne*:Sample*Ids*
sanitizer_limit_s=${MOXIE_SANITIZER_LIMIT_S:-180}

mkdir -p "$out"
export PATH="$PATH:/usr/local/cuda/bin"

# Text as a JSON string.
quoted() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\n'/ }
  printf '"%s"' "${text//[[:cntrl:]]/ }"
}
smi() { nvidia-smi --id=0 --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null | head -n 1; }
# The number after a key in the head of a report of gtest; null if there is none.
reported() {
  local found
  found=$(grep -m 1 -oE "\"$2\": \"?[0-9.]+" "$1" 2>/dev/null | grep -oE '[0-9.]+$')
  printf '%s' "${found:-null}"
}

clocks() {
  printf '{"sm": %s, "sm_max": %s, "memory": %s, "memory_max": %s}' \
    "$(number "$(smi clocks.sm)")" "$(number "$(smi clocks.max.sm)")" \
    "$(number "$(smi clocks.mem)")" "$(number "$(smi clocks.max.mem)")"
}
number() { [[ $1 =~ ^[0-9.]+$ ]] && printf '%s' "$1" || printf null; }

status=0
clocks_before=$(clocks)
report=$out/gpu_tests.json
rm -f "$report"
"$tests" --gtest_output="json:$report" --gtest_brief=1 2>&1 | tee "$out/gpu_tests.log"
tests_exit=${PIPESTATUS[0]}
[[ $tests_exit -eq 0 ]] || status=1
clocks_after=$(clocks)
num_skipped=null
[[ -f $report ]] && num_skipped=$(grep -c '"result": "SKIPPED"' "$report")

# One tool of compute-sanitizer: its verdict as JSON.
sanitize() {
  local tool=$1 filter=$2 log=$out/$1.log
  if ! command -v compute-sanitizer >/dev/null; then
    printf '{"ran": false, "reason": "compute-sanitizer is not installed"}'
    return 0
  fi
  if [[ $tests_exit -eq 77 ]]; then
    printf '{"ran": false, "reason": "no device"}'
    return 0
  fi
  timeout "$sanitizer_limit_s" compute-sanitizer --tool "$tool" --error-exitcode 9 \
    "$tests" --gtest_filter="$filter" --gtest_brief=1 >"$log" 2>&1
  local code=$? summary
  summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|not supported|Error' "$log" | tail -n 1)
  printf '{"ran": true, "exit_code": %d, "filter": %s, "summary": %s}' \
    "$code" "$(quoted "$filter")" "$(quoted "$summary")"
  return "$code"
}
memcheck=$(sanitize memcheck "$memcheck_filter") || status=1
racecheck=$(sanitize racecheck "$racecheck_filter") || status=1

cat >"$out/gpu_check.json" <<JSON
{
  "record": "gpu_check",
  "commit": $(quoted "${MOXIE_COMMIT:-unknown}"),
  "date": $(quoted "$(date -u +%Y-%m-%dT%H:%M:%SZ)"),
  "command": $(quoted "tools/gpu/check.sh"),
  "machine": {
    "gpu": $(quoted "$(smi name)"),
    "driver": $(quoted "$(smi driver_version)"),
    "memory_mib": $(number "$(smi memory.total)"),
    "power_limit_w": $(number "$(smi power.limit)"),
    "clocks_mhz_before": $clocks_before,
    "clocks_mhz_after": $clocks_after
  },
  "tests": {
    "exit_code": $tests_exit,
    "num_tests": $(reported "$report" tests),
    "num_failed": $(reported "$report" failures),
    "num_skipped": $num_skipped,
    "seconds": $(reported "$report" time)
  },
  "memcheck": $memcheck,
  "racecheck": $racecheck,
  "passed": $([[ $status -eq 0 ]] && echo true || echo false)
}
JSON
cat "$out/gpu_check.json"
exit "$status"
