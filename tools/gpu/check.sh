#!/usr/bin/env bash
# Runs every test that needs a GPU, again under compute-sanitizer where it is installed, then the
# benchmarks, and writes one JSON record. Needs nothing but the built binaries, a driver, a shell and
# the repository's tests/data; `serve` also tests/server and Python 3.11 or later:
#
#   make gpu
#   MOXIE_COMMIT=$(git rev-parse HEAD) tools/gpu/check.sh build/gpu OUT_FOLDER [PART...]
#
# PART: tests, memcheck, racecheck, steps, bench, speculation, profile, switches, load, serve; all of
# them if none is named.
# `serve` runs every command once, soaks servers (tests/server/soak.py) and runs the server's own
# tests, those that tests/server/requirements.txt lets this Python run; what does not run says why.
# MOXIE_PYTHON names the interpreter. Where there is no GPU, MOXIE_SERVE_DEVICE=cpu tries it with the
# embedded model alone.
# OUT_FOLDER gets gpu_check.json (a record for docs/records/) and the logs. Ends with 0 only if
# everything that ran passed. Leaves the device's settings alone.
set -uo pipefail

bin=${1:-build/gpu}
out=${2:-build/gpu/check}
shift $(($# < 2 ? $# : 2))
parts=${*:-tests memcheck racecheck steps bench speculation profile switches load serve}
tests=$bin/moxie_gpu_tests
wants() { [[ " $parts " == *" $1 "* ]]; }
commit=${MOXIE_COMMIT:-unknown}
# The sanitizers slow kernels down, racecheck manyfold: the large cases are left to the plain run, as
# are tests of speed and of the profiler, which needs the place that a sanitizer takes; racecheck
# takes a few that together pass every barrier and use every ring's memory again.
memcheck_filter="-*Large*:*BatchInvariance*:*FourGigabytes*:*120*:*TextIsTheCpu*:*NoDevice*:*Fault*:*InAndOut*:*Profile*:GpuLimits*"
racecheck_filter="LinearSteps*:AttendCuda*EveryGroup*:Embed*Narrow*:Norm*Digits*:Sample*Ties*Lower*:Sample*Strange*:Sample*MaskOfOne*:Sample*Ids*-LinearSteps*ExpertsAgree*"
sanitizer_limit_s=${MOXIE_SANITIZER_LIMIT_S:-300}
sanitizer_processes=4
# A kernel that waits for itself ends here.
step_limit_s=${MOXIE_STEP_LIMIT_S:-60}
python=${MOXIE_PYTHON:-python3}
serve_device=${MOXIE_SERVE_DEVICE:-cuda}
# What this script sets is not for the programs that it runs.
unset MOXIE_COMMIT MOXIE_SANITIZER_LIMIT_S MOXIE_STEP_LIMIT_S MOXIE_PYTHON MOXIE_SERVE_DEVICE

mkdir -p "$out"
export PATH="$PATH:/usr/local/cuda/bin"
export PYTHONDONTWRITEBYTECODE=1

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
  for tokens in 1 2 4 8 9 12 16; do steps_of mxfp4 --tokens $tokens; done
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
if wants speculation; then
  # Drafts, accepted at the rates that z-lab publishes for GSM8K, and at rates that drafts do not pay.
  gsm8k=0.90,0.77,0.63,0.54,0.46,0.35,0.28,0.22,0.16
  one="--model synthetic:gpt-oss-120b --kv-dtype bf16 -p 0 -n 256 -d 0 -r 3"
  bench 120b_dflash_mxfp4 $one --mxfp4-layers all -b 1,8,64 --spec dflash --spec-acceptance $gsm8k
  bench 120b_dflash_checkpoint $one -b 1 --spec dflash --spec-acceptance $gsm8k
  bench 120b_eagle3_mxfp4 $one --mxfp4-layers all -b 1 --spec eagle3 --spec-acceptance 0.78,0.54,0.36
  bench 120b_eagle3_checkpoint $one -b 1 --spec eagle3 --spec-acceptance 0.78,0.54,0.36
  bench 120b_ngram_all $one --mxfp4-layers all -b 1 --spec ngram --spec-acceptance 1,1,1,1,1,1,1
  bench 120b_ngram_none $one --mxfp4-layers all -b 1,8,64 --spec ngram --spec-acceptance 0.1,0.05
  bench 120b_dflash_none $one --mxfp4-layers all -b 1,8,64 --spec dflash --spec-acceptance 0.1,0.05
  bench 120b_off $one --mxfp4-layers all -b 1,8,64
  bench 120b_off_checkpoint $one -b 1
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

# Servers and clients. Pieces run in lanes beside each other on the one card; each has its limit, so
# that one that hangs has failed. A piece writes $serve/NAME.json, its verdict, and NAME.log.
serve=$out/serve
server_tests=$(dirname "$0")/../../tests/server

# Seconds with three decimals.
now() { date +%s.%3N; }
since() { awk -v from="$1" -v to="$(now)" 'BEGIN { printf "%.2f", to - from }'; }

# A piece has passed if it ends with 0: NAME LIMIT_S COMMAND... What it says is in $serve/NAME.out
# (JSON), or the last line of its output; `left_out` names what was left out of it.
left_out=()
piece() {
  local name=$1 limit=$2 begin code said
  shift 2
  begin=$(now)
  rm -f "$serve/$name.out"
  timeout -k 5 "$limit" "$@" >"$serve/$name.log" 2>&1
  code=$?
  said=$(tail -n 1 "$serve/$name.log")
  said=$(quoted "${said:0:300}")
  [[ -s $serve/$name.out ]] && said=$(cat "$serve/$name.out")
  printf '{"ran": true, "exit_code": %d, "seconds": %s, "limit_s": %d, "left_out": %s, "said": %s}' \
    "$code" "$(since "$begin")" "$limit" "$(quoted "${left_out[*]}")" "$said" >"$serve/$name.json"
}
not_run() { printf '{"ran": false, "reason": %s}' "$(quoted "$2")" >"$serve/$1.json"; }

# A command whose output is one JSON document: NAME ARGUMENTS...
document_of() {
  local name=$1
  shift
  # shellcheck disable=SC2016 # the inner shell expands
  piece "$name" 60 bash -o pipefail -c '"$@" | "$0" -c "import json, sys; json.load(sys.stdin)"' \
    "$python" "$bin/moxie" "$@"
}
# A command whose output holds a text: NAME TEXT INPUT ARGUMENTS...
text_of() {
  local name=$1 expected=$2 input=$3
  shift 3
  # shellcheck disable=SC2016
  piece "$name" 60 bash -o pipefail -c \
    'text=$(printf "%s\n" "$1" | "${@:3}") && printf "%s\n" "$text" && [[ $text == *"$2"* ]]' \
    text_of "$input" "$expected" "$bin/moxie" "$@"
}

# The commands on one model.
commands_of() {
  local name=$1 of_model=(--device "$serve_device" --model "$2")
  document_of "plan_$name" plan --json "${of_model[@]}"
  document_of "kernels_$name" kernels --json "${of_model[@]}"
  document_of "bench_$name" bench --json "${of_model[@]}" -p 128 -n 16 -b 1,4 -r 1
}
commands_of_embedded() {
  local device=(--device "$serve_device")
  commands_of embedded embedded
  document_of doctor doctor --json "${device[@]}"
  document_of score score "${device[@]}" --ids 5,6,7,8,9,10,11,12
  document_of run_json run --json "${device[@]}" "What is 17 + 25?"
  text_of run 42 "" run "${device[@]}" "What is 17 + 25?"
  text_of chat 42 "What is 17 + 25?" chat "${device[@]}"
  document_of profile profile --json "${device[@]}" -p 128 -n 16 -b 1 -r 1
  if grep -q 'libcupti was not found' "$serve/profile.log"; then
    not_run profile "libcupti was not found"
  fi
}

# NAME LIMIT_S MODEL FLAGS_OF_THE_SERVER and arguments of soak.py.
soak_lengths=(--max-prompt 5000 --max-answer 600)
soak_cache="--kv-cache-memory 2GiB"
if [[ $serve_device != cuda* ]]; then
  soak_lengths=(--max-prompt 300 --max-answer 60)
  soak_cache="--kv-cache-memory 64MiB --max-model-len 8192"
fi
soak() {
  local name=$1 limit=$2 model=$3 flags=$4
  shift 4
  piece "$name" "$limit" "$python" "$server_tests/soak.py" "$bin/moxie" --model "$model" \
    --device "$serve_device" --flags "$flags" --json "$serve/$name.out" \
    --log "$serve/$name.server.log" --seed 1 "${soak_lengths[@]}" "$@"
}
soak_120b() {
  local model=synthetic:gpt-oss-120b flags="--kv-dtype bf16 --tokenizer embedded"
  soak soak_120b 200 $model "$flags --kv-cache-memory 8GiB" --long 7000 --rounds 1 \
    --clients 300:5,4:60,1:4,96:5,300:5 --grow-mib 64
  soak soak_120b_small_cache 100 $model \
    "$flags --graphs off --kv-cache-memory 512MiB --max-model-len 2048 --max-num-batched-tokens 1024" \
    --rounds 1 --clients 96:8,1:3,4:4,96:8 --max-prompt 600 --expect-preemptions
}
soak_20b() {
  soak soak_20b 200 synthetic:gpt-oss-20b \
    "--kv-dtype bf16 --tokenizer embedded --kv-cache-memory 8GiB" --long 7000 --rounds 1 \
    --clients 4:60,1:5
}
soak_embedded() {
  soak soak_embedded 120 embedded "$soak_cache" --seconds 40 --clients 1,4,96,300
}
# Greedy answers with and without drafts.
lossless() {
  piece lossless 150 "$python" "$server_tests/lossless.py" "$bin/moxie" --device "$serve_device" \
    --json "$serve/lossless.out"
}
soak_embedded_more() {
  soak soak_embedded_small_cache 90 embedded "--kv-cache-memory 16MiB --max-model-len 2048" \
    --seconds 20 --clients 96 --max-prompt 1000 --max-answer 400 --expect-preemptions
  for method in dflash eagle3 ngram; do
    soak soak_embedded_$method 90 embedded "--spec $method $soak_cache" --seconds 20 --clients 1,96
  done
  soak soak_embedded_graphs_off 90 embedded "--graphs off $soak_cache" \
    --seconds 20 --clients 1,96
}

# The server's tests; each file's fixture is one server, and some start more beside it.
imports() { "$python" -c "import $1" 2>/dev/null; }
server_test() {
  local name=$1 needs=$2 left_out=() one chosen=""
  for one in $needs; do
    if ! imports "$one"; then
      not_run "test_$name" "Python has no $one"
      return
    fi
  done
  case $name in
    clients)
      [[ -x $(dirname "$(command -v "$python")")/llama-benchy ]] || left_out+=(llama_benchy)
      ;;
    worker)
      command -v openssl >/dev/null || left_out+=(certificate)
      ;;
    http)
      command -v openssl >/dev/null || left_out+=(tls)
      command -v curl >/dev/null || left_out+=(curl_line)
      ;;
  esac
  for one in "${left_out[@]}"; do chosen+="${chosen:+ and }not $one"; done
  MOXIE_BINARY=$bin/moxie MOXIE_SERVER_FLAGS="--device $serve_device --kv-cache-memory 1GiB" \
    piece "test_$name" 150 "$python" -m pytest -q -p no:cacheprovider ${chosen:+-k "$chosen"} "$server_tests/test_$name.py"
}

serve_summary='{"ran": false, "reason": "not asked for"}'
if wants serve && ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  serve_summary='{"ran": false, "reason": "no Python 3.11 or later"}'
elif wants serve; then
  serve_begin=$(now)
  rm -rf "$serve"
  mkdir -p "$serve"
  memory_before=$(number "$(smi memory.used)")
  lanes=()
  if [[ $serve_device == cuda* ]]; then
    (commands_of 120b synthetic:gpt-oss-120b; soak_120b) & lanes+=($!)
    (soak_20b) & lanes+=($!)
  fi
  (commands_of_embedded; lossless; soak_embedded) & lanes+=($!)
  (
    soak_embedded_more
    server_test clients "pytest openai anthropic agents pydantic" &
    server_test worker "pytest prometheus_client" &
    for name in requests faults http; do server_test $name pytest & done
    wait
  ) & lanes+=($!)
  wait "${lanes[@]}"
  server_test load pytest # it wants the machine to itself
  memory_after=$(number "$(smi memory.used)")
  pieces=""
  serve_failed=""
  for file in "$serve"/*.json; do
    name=$(basename "$file" .json)
    pieces+=${pieces:+,$'\n    '}"\"$name\": $(cat "$file")"
    if ! grep -qE '^\{"ran": (false|true, "exit_code": 0,)' "$file"; then
      serve_failed+=${serve_failed:+, }"\"$name\""
      status=1
      echo "FAILED: $name"
      tail -n 25 "$serve/$name.log"
    fi
  done
  serve_summary=$(printf '{"ran": true, "device": %s, "seconds": %s, "failed": [%s], "memory_used_mib": {"before": %s, "after": %s}, "pieces": {\n    %s\n  }}' \
    "$(quoted "$serve_device")" "$(since "$serve_begin")" "$serve_failed" \
    "$memory_before" "$memory_after" "$pieces")
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
  "serve": $serve_summary,
  "passed": $([[ $status -eq 0 ]] && echo true || echo false)
}
JSON
head -c 3000 "$out/gpu_check.json"
exit "$status"
