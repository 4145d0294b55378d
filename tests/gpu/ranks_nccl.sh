#!/usr/bin/env bash
# Ranks that are processes with a GPU each, through NCCL: two of them on this machine against one.
# Needs two GPUs, python3 and NCCL: that which MOXIE_NCCL_LIBRARY names, that of the system, or that
# of PyTorch or nvidia-nccl-cu13 in python3. Takes some six minutes:
#
#   tests/gpu/ranks_nccl.sh build/gpu/moxie OUT_FOLDER [PART...]
#
# PART: rows (moxie_gpu_tests beside the program), text, refused, sockets, lost, bench; all of them
# if none is named. Prints PASS or FAIL for each check, and ends with 0 only if none failed.
# OUT_FOLDER gets what the processes said, and bench_*.json.
set -uo pipefail

moxie=$(realpath "${1:-build/gpu/moxie}")
out=${2:-build/gpu/ranks_nccl}
shift $(($# < 2 ? $# : 2))
parts=${*:-rows text refused sockets lost bench}
mkdir -p "$out"
# Multicast over NVLink is left alone, as where several share a host's GPUs.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
failures=0
wants() { [[ " $parts " == *" $1 "* ]]; }
pass() { echo "PASS $1"; }
flunk() {
  echo "FAIL $1"
  failures=$((failures + 1))
}
# The ends of what the processes of a check said.
show() {
  local file
  for file in "$out/$1".*; do
    [[ -s $file ]] && sed "s|^|    ${file##*/}: |" <(tail -n 8 "$file")
  done
}
# Passes a check if the command after its name does.
check() {
  local name=$1
  shift
  if "$@"; then pass "$name"; else
    flunk "$name"
    show "$name"
  fi
}

find_nccl() {
  python3 - <<'PYTHON'
import importlib.util, pathlib
for name, folders in (("nvidia.nccl", ["lib"]), ("nvidia", ["nccl/lib", "cu13/lib"]), ("torch", ["lib"])):
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        continue
    for place in (spec.submodule_search_locations or []) if spec else []:
        for folder in folders:
            file = pathlib.Path(place, folder, "libnccl.so.2")
            if file.is_file():
                print(file)
                raise SystemExit
PYTHON
}
if [[ -z ${MOXIE_NCCL_LIBRARY:-} ]] && ! ldconfig -p 2>/dev/null | grep -q 'libnccl\.so\.2 '; then
  MOXIE_NCCL_LIBRARY=$(find_nccl)
  export MOXIE_NCCL_LIBRARY
fi
echo "NCCL: ${MOXIE_NCCL_LIBRARY:-the system\'s}"

# For ranks to meet on; of several worlds each has its own.
free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
# A rank in the background: NAME RANK ARGUMENTS... They meet on `port`; `pid` is its process.
start_rank() {
  local name=$1 rank=$2
  shift 2
  RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
    MASTER_PORT=$port "$moxie" "$@" >"$out/$name.$rank.out" 2>"$out/$name.$rank.err" &
  pid=$!
}
# Waits for a process for so many seconds; its exit status is in `code`, 124 if it had to be killed.
await() {
  local deadline=$((SECONDS + $2))
  while kill -0 "$1" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.2; done
  if kill -0 "$1" 2>/dev/null; then
    kill -9 "$1"
    wait "$1" 2>/dev/null
    code=124
  else
    wait "$1" 2>/dev/null
    code=$?
  fi
}
# Both ranks of a command: NAME LIMIT_S ARGUMENTS... Succeeds if both do.
both() {
  local name=$1 limit=$2 port first second first_code
  shift 2
  port=$(free_port)
  start_rank "$name" 0 "$@"
  first=$pid
  start_rank "$name" 1 "$@"
  second=$pid
  await "$first" "$limit"
  first_code=$code
  await "$second" 15
  ((first_code == 0 && code == 0)) && return 0
  echo "    exit statuses: rank 0 $first_code, rank 1 $code"
  return 1
}

# Whether the answer of a file is that of another, and came through NCCL's rows.
same_answer() {
  python3 - "$1" "$2" <<'PYTHON'
import json, sys
one, two = (json.load(open(path)) for path in sys.argv[1:3])
rows = {name: count for name, count in two["launches"].items() if "nccl" in name and count > 0}
print("    rows between ranks:", rows)
said = lambda answer: (answer["reasoning"], answer["content"])
if said(one) != said(two):
    print("    one GPU:", said(one))
    print("    two:    ", said(two))
sys.exit(said(one) != said(two) or len(rows) < 2)
PYTHON
}
# One answer on one GPU and on two processes: NAME ARGUMENTS...
answers() {
  local name=$1
  shift
  "$moxie" run --json --model embedded --device cuda:0 "$@" >"$out/$name.one.out" 2>"$out/$name.one.err" &&
    both "$name" 90 run --json --model embedded --device cuda "$@" &&
    same_answer "$out/$name.one.out" "$out/$name.0.out"
}

if wants rows; then
  tests=$(dirname "$moxie")/moxie_gpu_tests
  if [[ -x $tests ]]; then
    rows() { timeout 120 "$tests" --gtest_filter='RanksNcclCuda*' >"$out/rows.out" 2>&1 && ! grep -q SKIPPED "$out/rows.out"; }
    check rows rows
  else
    echo "not run: rows (no moxie_gpu_tests beside the program)"
  fi
fi

if wants text; then
  check text_without_graphs answers text_without_graphs --graphs off --temperature 0 "What is 17 + 25?"
  check text answers text --temperature 0 "What is 17 + 25?"
  check text_long answers text_long --temperature 0 --max-tokens 400 "Tell me a story about a fox."
  check text_drawn answers text_drawn --temperature 0.8 --seed 5 "What is 12 * 34?"
fi

# As if on two hosts: neither the other's memory nor memory of the host that both see.
if wants sockets; then
  over_sockets() (
    export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
    answers "$@"
  )
  check sockets over_sockets sockets --temperature 0 "What is 17 + 25?"
fi

if wants refused; then
  no_library() (
    export MOXIE_NCCL_LIBRARY=/no/such/libnccl.so.2
    ! both no_library 60 run --model embedded --device cuda "What is 17 + 25?" &&
      grep -q "nvidia-nccl" "$out/no_library.0.err"
  )
  check no_library no_library
  too_many_ranks() {
    RANK=0 WORLD_SIZE=64 LOCAL_RANK=0 LOCAL_WORLD_SIZE=64 timeout 60 "$moxie" run --model embedded \
      --device cuda "What is 17 + 25?" >"$out/too_many_ranks.out" 2>&1
    (($? == 1)) && grep -q "64 ranks on this host" "$out/too_many_ranks.out"
  }
  check too_many_ranks too_many_ranks
  one_gpu_for_two() {
    ! both one_gpu_for_two 100 run --model embedded --device cuda:0 "What is 17 + 25?" &&
      grep -q "have the same GPU" "$out/one_gpu_for_two.0.err"
  }
  check one_gpu_for_two one_gpu_for_two
fi

# One of two ranks gets a signal while both decode; the other ends by itself: NAME SIGNAL LOST
# LIMIT_S.
lose() {
  local name=$1 signal=$2 lost=$3 limit=$4 pids=() rank begin port
  port=$(free_port)
  for rank in 0 1; do
    start_rank "$name" "$rank" bench --model embedded --device cuda -p 0 -n 256 -d 0 -b 1 -r 100000
    pids+=("$pid")
  done
  sleep 15
  for rank in 0 1; do
    kill -0 "${pids[$rank]}" 2>/dev/null && continue
    echo "    rank $rank ended before"
    kill -9 "${pids[@]}" 2>/dev/null
    return 1
  done
  begin=$SECONDS
  kill -"$signal" "${pids[$lost]}"
  await "${pids[$((1 - lost))]}" "$limit"
  echo "    rank $((1 - lost)) ended with $code after $((SECONDS - begin)) s: $(tail -n 1 "$out/$name.$((1 - lost)).err")"
  kill -9 "${pids[$lost]}" 2>/dev/null
  wait "${pids[$lost]}" 2>/dev/null
  ((code == 1)) && grep -q "rank $lost" "$out/$name.$((1 - lost)).err"
}
if wants lost; then
  check killed_second lose killed_second KILL 1 15
  check killed_first lose killed_first KILL 0 15
  check stopped_second lose stopped_second STOP 1 25
fi

# Tokens a second of a test's median, by the tests' names.
speeds() {
  python3 - "$1" <<'PYTHON'
import json, sys
for test in json.load(open(sys.argv[1]))["tests"]:
    print("   ", test["name"], test["tok_s"]["median"], "tok/s")
PYTHON
}
if wants bench; then
  of_bench=(bench --model synthetic:gpt-oss-20b --kv-dtype bf16 -p 2048 -n 32 -b "1,8" -r 3 --json)
  measured() {
    local name=bench_$1
    shift
    both "$name" 300 "${of_bench[@]}" --device cuda && cp "$out/$name.0.out" "$out/$name.json" &&
      speeds "$out/$name.json"
  }
  alone() {
    local name=bench_$1
    timeout 300 "$moxie" "${of_bench[@]}" --device "$2" >"$out/$name.json" 2>"$out/$name.err" &&
      speeds "$out/$name.json"
  }
  bench_over_sockets() (
    export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
    measured sockets
  )
  check bench_nccl measured nccl
  check bench_sockets bench_over_sockets
  check bench_one alone one cuda:0
  check bench_peers alone peers cuda:0,1
fi

((failures == 0)) && echo "all passed" || echo "$failures failed"
exit $((failures > 0))
