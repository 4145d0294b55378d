#!/usr/bin/env bash
# Runs the fuzzers of build/fuzz: tools/fuzz.sh SECONDS [NAME...], each for SECONDS over a copy of
# fuzz/corpus/NAME, so that the tree stays clean. What breaks one is kept in build/fuzz/found, and
# `build/fuzz/fuzzers/NAME FILE` runs it again. `--keep` merges new inputs into fuzz/corpus/NAME.
set -uo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
keep=0
if [[ ${1:-} == --keep ]]; then
  keep=1
  shift
fi
seconds=${1:?"usage: tools/fuzz.sh [--keep] SECONDS [NAME...]"}
shift
symbolizer=$(command -v llvm-symbolizer-19 || command -v addr2line || true)
export ASAN_OPTIONS=detect_leaks=1:external_symbolizer_path=$symbolizer UBSAN_OPTIONS=print_stacktrace=1

names=("$@")
if ((${#names[@]} == 0)); then
  for binary in build/fuzz/fuzzers/*; do [[ -x $binary ]] && names+=("${binary##*/}"); done
fi
if ((${#names[@]} == 0)); then
  echo "fuzz: no fuzzer is built: cmake --preset fuzz && cmake --build build/fuzz" >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p build/fuzz/found

fuzz_one() {
  local name=$1 seeds=fuzz/corpus/$1 log=$work/$1.log extra=()
  mkdir -p "$work/$name"
  [[ -d $seeds ]] && cp -r "$seeds/." "$work/$name/"
  [[ -f fuzz/dictionaries/$name.txt ]] && extra=(-dict="fuzz/dictionaries/$name.txt")
  if build/fuzz/fuzzers/"$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 \
    -print_final_stats=1 -artifact_prefix="build/fuzz/found/$name-" "${extra[@]}" \
    "$work/$name" </dev/null >"$log" 2>&1; then
    echo "fuzz: $name: clean, $(awk '/number_of_executed_units/ { print $2 }' "$log") runs," \
      "$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1), $seconds s"
    if ((keep)); then
      mkdir -p "$seeds"
      build/fuzz/fuzzers/"$name" -merge=1 "$seeds" "$work/$name" >>"$log" 2>&1
    fi
  else
    tail -n 60 "$log"
    echo "fuzz: $name: FAILED: the input is in build/fuzz/found"
    touch "$work/failed.$name"
  fi
}

for name in "${names[@]}"; do
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
  fuzz_one "$name" &
done
wait
if compgen -G "$work/failed.*" >/dev/null; then exit 1; fi
