#!/usr/bin/env bash
# Runs every test that needs a GPU, again under compute-sanitizer where it is installed, then the
# benchmarks, and writes one JSON record. Needs nothing but the built binaries, a driver, a shell and
# the repository's tests/data:
#
#   make gpu
#   MOXIE_COMMIT=$(git rev-parse HEAD) tools/gpu/check.sh build/gpu OUT_FOLDER [PART...]
#
# PART: tests, memcheck, racecheck, steps, bench, profile, switches, load; all of them if none is
# named.
# OUT_FOLDER gets gpu_check.json (a record for docs/records/) and the logs. Ends with 0 only if
# everything that ran passed. Leaves the device's settings alone.
set -uo pipefail

bin=${1:-build/gpu}
out=${2:-build/gpu/check}
shift $(($# < 2 ? $# : 2))
parts=${*:-tests memcheck racecheck steps bench profile switches load}
tests=$bin/moxie_gpu_tests
wants() { [[ " $parts " == *" $1 "* ]]; }
commit=${MOXIE_COMMIT:-unknown}
# The sanitizers slow kernels down, racecheck manyfold: the large cases are left to the plain run, as
# are tests of speed and of the profiler, which needs the place that a sanitizer takes; racecheck
# takes a few that together pass every barrier and use every ring's memory again.
memcheck_filter="-*Large*:*FourGigabytes*:*120*:*TextIsTheCpu*:*NoDevice*:*Fault*:*InAndOut*:*Profile*:GpuLimits*"
racecheck_filter="LinearSteps*:AttendCuda*EveryGroup*:Embed*Narrow*:Norm*Digits*:Sample*Ties*Lower*:Sample*Strange*:Sample*MaskOfOne*:Sample*Ids*-LinearSteps*ExpertsAgree*"
sanitizer_limit_s=${MOXIE_SANITIZER_LIMIT_S:-300}
sanitizer_processes=4
# A kernel that waits for itself ends here.
step_limit_s=${MOXIE_STEP_LIMIT_S:-60}
# What this script sets is not for the programs that it runs.
unset MOXIE_COMMIT MOXIE_SANITIZER_LIMIT_S

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

# How many tests a filter names.
num_tests() { "$tests" --gtest_filter="$1" --gtest_list_tests 2>/dev/null | grep -c '^  '; }

# One tool of compute-sanitizer over a part of the tests, cut into shards, some of them side by side
# (twice as many hold each other up on the device): its verdict as JSON to $out/TOOL.json. Without a
# number of shards there is one a test.
sanitize() {
  local tool=$1 filter=$2 shards=${3:-} codes=() pids=() shard pid one code=0
  if ! wants "$tool"; then
    printf '{"ran": false, "reason": "not asked for"}' >"$out/$tool.json"
    return 0
  fi
  if ! command -v compute-sanitizer >/dev/null; then
    printf '{"ran": false, "reason": "compute-sanitizer is not installed"}' >"$out/$tool.json"
    return 0
  fi
  if [[ -z $(smi name) ]]; then
    printf '{"ran": false, "reason": "no device"}' >"$out/$tool.json"
    return 0
  fi
  rm -f "$out/$tool".*.log
  [[ -n $shards ]] || shards=$(num_tests "$filter")
  ((shards > 0)) || shards=1 # it says what is wrong
  for ((shard = 0; shard < shards; ++shard)); do
    while (($(jobs -rp | wc -l) >= sanitizer_processes)); do wait -n; done
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard timeout "$sanitizer_limit_s" \
      compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$tests" --gtest_filter="$filter" >"$out/$tool.$shard.log" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    wait "$pid"
    codes+=($?)
  done
  for one in "${codes[@]}"; do ((one > code)) && code=$one; done
  local summary version
  version=$(compute-sanitizer --version | grep -oE 'Version [0-9.]+' | cut -d' ' -f2)
  summary=$(grep -hE '^=+ .*(SUMMARY|not supported|Error)|^\[  (PASSED|FAILED)' \
    "$out/$tool".*.log | sort | uniq -c)
  printf '{"ran": true, "version": %s, "exit_code": %d, "exit_codes": [%s], "filter": %s, "summary": %s}' \
    "$(quoted "$version")" "$code" "$(IFS=,; printf '%s' "${codes[*]}")" "$(quoted "$filter")" \
    "$(quoted "$summary")" >"$out/$tool.json"
  return "$code"
}

status=0
clocks_before=$(clocks)
report=$out/gpu_tests.json
rm -f "$report"
tests_exit=null
if wants tests; then
  "$tests" --gtest_output="json:$report" --gtest_brief=1 2>&1 | tee "$out/gpu_tests.log"
  tests_exit=${PIPESTATUS[0]}
  [[ $tests_exit -eq 0 ]] || status=1
fi
clocks_after=$(clocks)
num_skipped=null
[[ -f $report ]] && num_skipped=$(grep -c '"result": "SKIPPED"' "$report")

sanitize memcheck "$memcheck_filter" $sanitizer_processes || status=1
sanitize racecheck "$racecheck_filter" || status=1 # few tests, of very different length
memcheck=$(cat "$out/memcheck.json") racecheck=$(cat "$out/racecheck.json")

# Each step alone and the chain of all, at the shapes of gpt-oss-120b: its lines as JSON.
step_lines() {
  awk 'BEGIN { printf "[" }
    /^NVIDIA|read [0-9]+ GB/ { match($0, /read [0-9]+/); read_gb_s = substr($0, RSTART + 5, RLENGTH - 5) }
    NF == 6 && $3 ~ /^[0-9.]+$/ && $1 != "step" {
      printf "%s{\"step\": \"%s\", \"mb\": %s, \"us\": %s, \"limit_us\": %s, \"tflops\": %s}", sep, $1, $2, $3, $4, $6
      sep = ", " }
    END { printf "], \"read_gb_s\": %s", read_gb_s == "" ? "null" : read_gb_s }' "$1"
}
steps=""
# Dense layers' format, and how many tokens: --tokens N (streams) or --prompt N.
steps_of() {
  local dense=$1 kind=$2 tokens=$3 log=$out/steps_$1$2_$3.log
  shift 3
  timeout "$step_limit_s" "$bin/moxie_gpu_step_bench" --dense "$dense" "$kind" "$tokens" "$@" \
    >"$log" 2>&1 || status=1
  cat "$log"
  steps+=${steps:+, }$(printf '{"dense": "%s", "%s": %d, "steps": %s}' \
    "$dense" "${kind#--}" "$tokens" "$(step_lines "$log")")
}
if wants steps; then
  for tokens in 1 2 4 8; do steps_of mxfp4 --tokens $tokens; done
  for dense in bf16 mxfp8; do steps_of $dense --tokens 1; done
  for tokens in 64 256; do steps_of bf16 --tokens $tokens --depth 1024 --layers 6; done
  for tokens in 128 2048; do steps_of bf16 --prompt $tokens --depth 0 --layers 4 --repeat 7; done
  for activation in bf16 mxfp8; do
    steps_of bf16 --prompt 8192 --depth 0 --layers 4 --repeat 7 --activation $activation --x single
  done
fi

# Whole models on random weights; each is one JSON document of `moxie bench`.
benches=""
bench() {
  local name=$1
  shift
  "$bin/moxie" bench --device cuda --json "$@" >"$out/bench_$name.json" 2>"$out/bench_$name.log" || {
    status=1
    cat "$out/bench_$name.log"
    return
  }
  benches+=${benches:+, }"\"$name\": $(cat "$out/bench_$name.json")"
}
if wants bench; then
  # Long prompts are at the power cap, where a card that others have warmed clocks lower: first, and
  # the longest of them before all.
  for size in 120b 20b; do
    bench ${size}_prompts_mxfp8 --model synthetic:gpt-oss-$size --kv-dtype bf16 -p 8192,2048 -n 0 -d 0 -b 1 -r 10 \
      --activation mxfp8
    bench ${size}_prompts --model synthetic:gpt-oss-$size --kv-dtype bf16 -p 128,2048,8192 -n 0 -d 0 -b 1 -r 10
  done
  for size in 120b 20b; do
    model=synthetic:gpt-oss-$size
    bench ${size}_mxfp4 --model $model --mxfp4-layers all --kv-dtype bf16 -p 128 -n 128 -d 128 -b 1,2,4,8
    bench ${size}_checkpoint --model $model --kv-dtype bf16 -p 0 -n 128 -d 128 -b 1,2,4,8
    bench ${size}_mxfp8 --model $model --mxfp8-layers all --kv-dtype bf16 -p 0 -n 128 -d 128 -b 1
  done
  bench 120b_long_prompts --model synthetic:gpt-oss-120b --kv-dtype bf16 -p 32768,131072 -n 0 -d 0 -b 1 -r 1 \
    --max-model-len 131072
  bench 120b_streams --model synthetic:gpt-oss-120b --kv-dtype bf16 -p 0 -n 32 -d 1024 -b 64,256
  bench 120b_mxfp4_depth --model synthetic:gpt-oss-120b --mxfp4-layers all --kv-dtype bf16 \
    -p 0 -n 64 -d 8192,32768 -b 1 -r 5
fi
# Where the time of decode and of prompts goes. Needs libcupti.so.13: see `moxie profile --help`.
profile='{"ran": false, "reason": "not asked for"}'
if wants profile; then
  if "$bin/moxie" profile --device cuda --json --model synthetic:gpt-oss-120b --mxfp4-layers all \
    --kv-dtype bf16 -p 2048,8192 -n 128 -d 0 -b 1 >"$out/profile.json" 2>"$out/profile.log"; then
    profile=$(cat "$out/profile.json")
  elif grep -q 'libcupti was not found' "$out/profile.log"; then
    profile='{"ran": false, "reason": "libcupti was not found"}'
  else
    status=1
    cat "$out/profile.log"
    profile=$(printf '{"ran": false, "reason": %s}' "$(quoted "$(tail -n 1 "$out/profile.log")")")
  fi
fi
switches=null
if wants switches; then
  "$bin/moxie" score --compare-switches --device cuda --json >"$out/switches.json" &&
    switches=$(cat "$out/switches.json") || status=1
fi
# 20b from files that the page cache holds: written first, so that reading finds them warm.
load=null
if wants load; then
  folder=$out/checkpoint_20b
  if "$bin/moxie-write-checkpoint" --config synthetic:gpt-oss-20b --out "$folder" >"$out/write.log" 2>&1; then
    bench 20b_files --model "$folder" --kv-dtype bf16 -p 0 -n 16 -d 0 -b 1 -r 1
    load='"see benches.20b_files"'
  else
    status=1
  fi
  rm -rf "$folder"
fi

cat >"$out/gpu_check.json" <<JSON
{
  "record": "gpu_check",
  "commit": $(quoted "$commit"),
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
  "steps": [$steps],
  "benches": {$benches},
  "profile": $profile,
  "switches": $switches,
  "load": $load,
  "passed": $([[ $status -eq 0 ]] && echo true || echo false)
}
JSON
head -c 3000 "$out/gpu_check.json"
exit "$status"
