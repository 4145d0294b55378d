#!/usr/bin/env bash
# Runs every test that needs a GPU, again under compute-sanitizer where it is installed, then
# `moxie validate`, `moxie bench` and other commands that measure, and servers under load. Needs
# nothing but the built binaries, a driver, a shell and the repository's tests/data; `serve` also
# tests/server and Python 3.11 or later:
#
#   make gpu
#   tools/gpu/check.sh build/gpu OUT_FOLDER [PART...]
#
# PART: tests, memcheck, racecheck, validate, bench, tune, speculation, profile, switches, load,
# ranks, serve, matrix; all of them but matrix if none is named. `ranks` needs two GPUs.
# `validate` runs levels 1 to 5 of the embedded model and of gpt-oss-120b on random weights: level 4
# against MOXIE_BEFORE/validate_NAME.json, a record of an earlier run; where there is none, it is made
# first, by the same binary. `serve` runs every command once, soaks servers (tests/server/soak.py) and
# runs the server's own tests, those that tests/server/requirements.txt lets this Python run; what
# does not run says why. MOXIE_PYTHON names the interpreter. Where there is no GPU,
# MOXIE_SERVE_DEVICE=cpu tries it with the embedded model alone.
# OUT_FOLDER gets records/NAME.json, each a record as docs/measuring.md describes them;
# gpu_check.json, the verdict of each piece; and the logs. Ends with 0 only if everything that ran
# passed. Leaves the device's settings alone.
set -uo pipefail

bin=${1:-build/gpu}
out=${2:-build/gpu/check}
shift $(($# < 2 ? $# : 2))
parts=${*:-tests memcheck racecheck validate bench tune speculation profile switches load ranks serve}
tests=$bin/moxie_gpu_tests
wants() { [[ " $parts " == *" $1 "* ]]; }
# The sanitizers slow kernels down, racecheck manyfold: the large cases are left to the plain run, as
# are tests of speed and of the profiler, which needs the place that a sanitizer takes; racecheck
# takes a few that together pass every barrier and use every ring's memory again.
memcheck_filter="-*Large*:*BatchInvariance*:*FourGigabytes*:*120*:*TextIsTheCpu*:*NoDevice*:*Fault*:*InAndOut*:*Profile*:GpuLimits*"
racecheck_filter="LinearSteps*:AttendCuda*EveryGroup*:Embed*Narrow*:Norm*Digits*:Sample*Ties*Lower*:Sample*Strange*:Sample*MaskOfOne*:Sample*Ids*-LinearSteps*ExpertsAgree*"
sanitizer_limit_s=${MOXIE_SANITIZER_LIMIT_S:-300}
sanitizer_processes=4
python=${MOXIE_PYTHON:-python3}
serve_device=${MOXIE_SERVE_DEVICE:-cuda}
records_before=${MOXIE_BEFORE:-}
# What this script sets is not for the programs that it runs.
unset MOXIE_SANITIZER_LIMIT_S MOXIE_PYTHON MOXIE_SERVE_DEVICE MOXIE_BEFORE

pieces=$out/pieces
records=$out/records
rm -rf "$pieces"
mkdir -p "$pieces" "$records"
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
# Seconds with three decimals.
now() { date +%s.%3N; }
since() { awk -v from="$1" -v to="$(now)" 'BEGIN { printf "%.2f", to - from }'; }

# A piece has passed if it ends with 0: NAME LIMIT_S COMMAND... What it says is in $pieces/NAME.out
# (JSON), or the last line of its output; `left_out` names what was left out of it.
left_out=()
piece() {
  local name=$1 limit=$2 begin code said
  shift 2
  begin=$(now)
  rm -f "$pieces/$name.out"
  timeout -k 5 "$limit" "$@" >"$pieces/$name.log" 2>&1
  code=$?
  said=$(tail -n 1 "$pieces/$name.log")
  said=$(quoted "${said:0:300}")
  [[ -s $pieces/$name.out ]] && said=$(cat "$pieces/$name.out")
  printf '{"ran": true, "exit_code": %d, "seconds": %s, "limit_s": %d, "left_out": %s, "said": %s}' \
    "$code" "$(since "$begin")" "$limit" "$(quoted "${left_out[*]}")" "$said" >"$pieces/$name.json"
}
not_run() { printf '{"ran": false, "reason": %s}' "$(quoted "$2")" >"$pieces/$1.json"; }

# One moxie command with a record: NAME LIMIT_S COMMAND ARGUMENTS...
measure() {
  local name=$1 limit=$2
  shift 2
  rm -f "$records/$name.json"
  piece "$name" "$limit" "$bin/moxie" "$@" --device cuda --record "$records/$name.json"
}

# How many tests a filter names.
num_tests() { "$tests" --gtest_filter="$1" --gtest_list_tests 2>/dev/null | grep -c '^  '; }

# One tool of compute-sanitizer over a part of the tests, cut into shards, some of them side by side
# (twice as many hold each other up on the device). Without a number of shards there is one a test.
sanitize() {
  local tool=$1 filter=$2 shards=${3:-} shard
  wants "$tool" || return 0
  command -v compute-sanitizer >/dev/null || { not_run "$tool" "compute-sanitizer is not installed"; return; }
  [[ -n $(smi name) ]] || { not_run "$tool" "no device"; return; }
  [[ -n $shards ]] || shards=$(num_tests "$filter")
  ((shards > 0)) || shards=1 # it says what is wrong
  for ((shard = 0; shard < shards; ++shard)); do
    while (($(jobs -rp | wc -l) >= sanitizer_processes)); do wait -n; done
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard piece "$tool.$shard" "$sanitizer_limit_s" \
      compute-sanitizer --tool "$tool" --error-exitcode 9 "$tests" --gtest_filter="$filter" &
  done
  wait
}

if wants tests; then
  piece gpu_tests 900 "$tests" --gtest_output="json:$out/gpu_tests.json" --gtest_brief=1
fi
sanitize memcheck "$memcheck_filter" $sanitizer_processes
sanitize racecheck "$racecheck_filter" # few tests, of very different length

# Levels 1 to 5, of the level 4 that an earlier run recorded.
validate() {
  local name=validate_$1 model=$2 before
  before=$records_before/$name.json
  shift 2
  if [[ -z $records_before || ! -s $before ]]; then
    measure "${name}_before" 600 validate --model "$model" --level 4 "$@"
    before=$records/${name}_before.json
  fi
  measure "$name" 600 validate --model "$model" --level 5 --against "$before" "$@"
}
if wants validate; then
  validate embedded embedded --quick
  validate 120b synthetic:gpt-oss-120b --quick
fi

# Whole models on random weights.
bench() { measure "bench_$1" 600 bench "${@:2}"; }
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
# Every row that a plan may have, in launches of the model, beside its prediction.
if wants tune; then
  measure tune_120b 300 tune --model synthetic:gpt-oss-120b -b 1,8,64 -p 128,2048,8192 --dry-run
  measure tune_20b 300 tune --model synthetic:gpt-oss-20b -b 1,8,64 -p 128,2048,8192 --dry-run
fi
if wants speculation; then
  # Drafts, accepted at the rates that z-lab publishes for GSM8K, and at rates that drafts do not pay.
  gsm8k=0.90,0.77,0.63,0.54,0.46,0.35,0.28,0.22,0.16
  one=(--model synthetic:gpt-oss-120b --kv-dtype bf16 -p 0 -n 256 -d 0 -r 3)
  bench 120b_dflash_mxfp4 "${one[@]}" --mxfp4-layers all -b 1,8,64 --spec dflash --spec-acceptance $gsm8k
  bench 120b_dflash_checkpoint "${one[@]}" -b 1 --spec dflash --spec-acceptance $gsm8k
  bench 120b_eagle3_mxfp4 "${one[@]}" --mxfp4-layers all -b 1 --spec eagle3 --spec-acceptance 0.78,0.54,0.36
  bench 120b_eagle3_checkpoint "${one[@]}" -b 1 --spec eagle3 --spec-acceptance 0.78,0.54,0.36
  bench 120b_ngram_all "${one[@]}" --mxfp4-layers all -b 1 --spec ngram --spec-acceptance 1,1,1,1,1,1,1
  bench 120b_ngram_none "${one[@]}" --mxfp4-layers all -b 1,8,64 --spec ngram --spec-acceptance 0.1,0.05
  bench 120b_dflash_none "${one[@]}" --mxfp4-layers all -b 1,8,64 --spec dflash --spec-acceptance 0.1,0.05
  bench 120b_off "${one[@]}" --mxfp4-layers all -b 1,8,64
  bench 120b_off_checkpoint "${one[@]}" -b 1
fi
# Where the time of decode and of prompts goes. Needs libcupti.so.13: see `moxie profile --help`.
if wants profile; then
  measure profile 300 profile --model synthetic:gpt-oss-120b --mxfp4-layers all --kv-dtype bf16 \
    -p 2048,8192 -n 128 -d 0 -b 1
  if grep -q 'libcupti was not found' "$pieces/profile.log"; then
    not_run profile "libcupti was not found"
  fi
fi
if wants switches; then
  piece switches 300 "$bin/moxie" score --compare-switches --device cuda
  measure eval 300 eval "$(dirname "$0")/../../models/tiny/eval.jsonl" \
    --compare-switches "--kv-dtype fp8_e4m3" --compare-switches "--mxfp4-layers all"
fi
# 20b from files that the page cache holds: written first, so that reading finds them warm.
if wants load; then
  folder=$out/checkpoint_20b
  piece write_checkpoint 300 "$bin/moxie-write-checkpoint" --config synthetic:gpt-oss-20b --out "$folder"
  bench 20b_files --model "$folder" --kv-dtype bf16 -p 0 -n 16 -d 0 -b 1 -r 1
  rm -rf "$folder"
fi
# Two GPUs against one, in one process and in two.
if wants ranks; then
  if [[ $(nvidia-smi --list-gpus 2>/dev/null | wc -l) -lt 2 ]]; then
    not_run ranks "fewer than two GPUs"
  else
    for n in 1 2; do
      bench "120b_ranks_$n" --model synthetic:gpt-oss-120b --mxfp4-layers all --kv-dtype bf16 \
        --tensor-parallel-size "$n" -p 2048,8192 -n 64 -d 1024 -b 1,8,64 -r 3
    done
    piece ranks_nccl 600 "$(dirname "$0")/../../tests/gpu/ranks_nccl.sh" "$bin/moxie" "$out/ranks_nccl"
  fi
fi
# Switches that decide which kernels run, in every combination, through all levels:
# docs/feature-matrix-h100.md.
if wants matrix; then
  of_matrix=(--model embedded --quick --timeout 300 --switch "kv-dtype=bf16,fp8_e4m3"
    --switch "mxfp4-layers=moe,all" --switch "activation=auto,mxfp8" --switch "graphs=on,off"
    --switch "kernel=attend=auto,attend=attend_any_f32_split_cuda")
  # A pass takes some ten minutes: one that was cut off goes on where it ended.
  matrix_pass() {
    local record=$records/$1.json resume=()
    [[ -s $record ]] && resume=(--resume)
    piece "$1" 3600 "$bin/moxie" matrix "${of_matrix[@]}" --device cuda --record "$record" \
      "${resume[@]}" "${@:2}"
  }
  matrix_pass matrix_before --level 4 --records "$out/cells"
  matrix_pass matrix --level 5 --against-records "$out/cells" --markdown "$out/feature-matrix-h100.md"
fi

# Servers and clients. Pieces run in lanes beside each other on the one card; each has its limit, so
# that one that hangs has failed. A piece writes $pieces/NAME.json, its verdict, and NAME.log.
server_tests=$(dirname "$0")/../../tests/server

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
  document_of profile_embedded profile --json "${device[@]}" -p 128 -n 16 -b 1 -r 1
  if grep -q 'libcupti was not found' "$pieces/profile_embedded.log"; then
    not_run profile_embedded "libcupti was not found"
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
    --device "$serve_device" --flags "$flags" --json "$pieces/$name.out" \
    --log "$pieces/$name.server.log" --seed 1 "${soak_lengths[@]}" "$@"
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
    --json "$pieces/lossless.out"
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

if wants serve && ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  not_run serve "no Python 3.11 or later"
elif wants serve; then
  lanes=()
  if [[ $serve_device == cuda* ]]; then
    (commands_of 120b synthetic:gpt-oss-120b; soak_120b) & lanes+=($!)
    # Where all do not fit, the largest is alone.
    [[ $(smi memory.total) -ge 120000 ]] || wait "${lanes[@]}"
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
fi

status=0
list=""
for file in "$pieces"/*.json; do
  [[ -s $file ]] || continue
  name=$(basename "$file" .json)
  list+=${list:+,$'\n    '}"\"$name\": $(cat "$file")"
  if ! grep -qE '^\{"ran": (false|true, "exit_code": 0,)' "$file"; then
    status=1
    echo "FAILED: $name"
    tail -n 25 "$pieces/$name.log"
  fi
done
cat >"$out/gpu_check.json" <<JSON
{
  "date": $(quoted "$(date -u +%Y-%m-%dT%H:%M:%SZ)"),
  "version": $(quoted "$("$bin/moxie" --version)"),
  "gpu": $(quoted "$(smi name)"),
  "driver": $(quoted "$(smi driver_version)"),
  "parts": $(quoted "$parts"),
  "pieces": {
    $list
  },
  "passed": $([[ $status -eq 0 ]] && echo true || echo false)
}
JSON
head -c 3000 "$out/gpu_check.json"
exit "$status"
