#!/usr/bin/env bash
# The checks beyond the tests: format, clang-tidy on what changed, sanitizers, fuzzers, aarch64, and
# what runs outside of the tree: routers, deploy/, the page in a browser, packages, moxie_ops.
#   tools/check.sh                 all of them, each fuzzer for a minute
#   tools/check.sh --quick         format, a bounded clang-tidy, the address sanitizer, 10 s a fuzzer
#   tools/check.sh STEP...         of: format tidy asan tsan fuzz arm routers deploy page package ops
#                                  (--quick shortens them; DEPLOY_FLAGS=--full also builds the
#                                  program inside the image)
#   tools/check.sh --fix-format    rewrites the sources in the house format
# Runs every step even when one fails; the last line says which failed. JOBS=N sets the processes.
set -uo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
quick=0
steps=()
export PATH="$PATH:/usr/local/cuda/bin"

newest() { # the newest installed of the versions that setup.sh installs, else the plain name
  local version
  for version in 21 20 19 18; do
    if command -v "$1-$version" >/dev/null; then
      echo "$1-$version"
      return
    fi
  done
  echo "$1"
}

# What git tracks or would track: build folders and local files stay out.
sources() {
  git ls-files --cached --others --exclude-standard -- '*.cpp' '*.h' '*.cu' '*.cuh' |
    while read -r file; do [[ -f $file ]] && echo "$file"; done
}

format() {
  local formatter=clang-format-14
  command -v $formatter >/dev/null || formatter=clang-format
  sources | xargs -r -n 40 -P "$jobs" $formatter "$@"
}

check_format() {
  local files
  files=$(format --dry-run 2>&1 | awk -F: '/Wclang-format-violations/ { print $1 }' | sort -u)
  [[ -z $files ]] && return
  printf 'not in the house format (make format mends it):\n%s\n' "$files"
  return 1
}

# The files that differ from where this branch left main; on main itself, from the last commit.
changed_sources() {
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null || true)
  if [[ -z $base || $base == $(git rev-parse HEAD 2>/dev/null) ]]; then
    base=$(git rev-parse -q --verify HEAD~ || git hash-object -t tree /dev/null)
  fi
  {
    git diff --name-only --diff-filter=d "$base" -- src fuzz
    git ls-files --others --exclude-standard -- src fuzz
  } | sort -u | while read -r file; do
    case "$file" in
      *.cpp) echo "$file" ;;
      *.h) [[ -f ${file%.h}.cpp ]] && echo "${file%.h}.cpp" ;; # a header is read through its source
    esac
  done | sort -u
}

check_tidy() {
  local tidy limit=100000 files=() known=() file
  tidy=$(newest clang-tidy)
  ((quick)) && limit=12
  cmake --preset release --log-level=NOTICE >/dev/null || return 1
  mapfile -t files < <(changed_sources)
  for file in "${files[@]}"; do # what this configuration does not build has no compile command
    grep -qF "$PWD/$file\"" build/release/compile_commands.json && known+=("$file")
  done
  echo "clang-tidy: ${#known[@]} changed sources, the first $limit of them are read"
  ((${#known[@]})) || return 0
  printf '%s\n' "${known[@]:0:limit}" |
    xargs -n 1 -P "$jobs" "$tidy" -p build/release --quiet \
      --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-ignored-gch \
      2> >(grep -v 'warnings generated' >&2)
}

# The library of grammars and the server's tests take minutes to build: --quick leaves them out. Of
# the tests it takes under the address sanitizer what reads other people's files; requests and text
# are what the fuzzers read, under the same sanitizers.
grammars() {
  echo "-DMOXIE_STRUCTURED_OUTPUT=$( ((quick)) && echo OFF || echo ON)"
}

check_asan() {
  export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
  export UBSAN_OPTIONS=print_stacktrace=1
  local targets=() only=()
  if ((quick)); then
    targets=(--target moxie_{core,hub,weights,checkpoint}_test)
    only=(-R '^moxie_(core|hub|weights|checkpoint)_test$')
  fi
  cmake --preset asan --log-level=NOTICE "$(grammars)" >/dev/null &&
    cmake --build build/asan -j "$jobs" "${targets[@]}" &&
    ctest --test-dir build/asan -j "$jobs" --output-on-failure --no-tests=error "${only[@]}"
}

# The folders in which threads meet; from outside the server, under load and how it ends, and a pull.
# A kernel with wide address space layout randomisation refuses the thread sanitizer's memory map, so
# that is switched off where it can be.
check_tsan() {
  local tests=() fixed=()
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
  cmake --preset tsan --log-level=NOTICE "$(grammars)" >/dev/null || return 1
  mapfile -t tests < <(ctest --test-dir build/tsan -N |
    grep -oE 'moxie_(core|hub|weights|kernels|grammar|model|engine|server|lab)_test$' | sort -u)
  ((${#tests[@]})) || { echo "no tests of threads found"; return 1; }
  setarch "$(uname -m)" -R true 2>/dev/null && fixed=(setarch "$(uname -m)" -R)
  cmake --build build/tsan -j "$jobs" --target moxie "${tests[@]}" &&
    "${fixed[@]}" ctest --test-dir build/tsan -j "$jobs" --output-on-failure --no-tests=error \
      -R "^($(IFS='|'; echo "${tests[*]}")|moxie_server_(faults|load)|moxie_hub_(pull|faults))\$"
}

check_fuzz() {
  local fuzzers
  cmake --preset fuzz --log-level=NOTICE "$(grammars)" >/dev/null || return 1
  mapfile -t fuzzers < <(ninja -C build/fuzz -t targets all | grep -oE '^fuzzers/[^:]+')
  ((${#fuzzers[@]})) || { echo "no fuzzers found"; return 1; }
  cmake --build build/fuzz -j "$jobs" --target "${fuzzers[@]}" &&
    JOBS=$jobs tools/fuzz.sh $((quick ? 10 : 60))
}

# The cross build for aarch64, run twice: with all that the emulator knows, and as a CPU that has no
# more than every aarch64 has, where a row compiled for more and chosen by mistake ends in SIGILL.
check_arm() {
  cmake --preset aarch64 --log-level=NOTICE >/dev/null &&
    cmake --build build/aarch64 -j "$jobs" &&
    QEMU_CPU=max ctest --test-dir build/aarch64 -j "$jobs" --output-on-failure --no-tests=error &&
    QEMU_CPU=cortex-a53 ctest --test-dir build/aarch64 -j "$jobs" --output-on-failure \
      --no-tests=error -R '^moxie_(core|kernels|golden|cli)_test$'
}

# Routers of PyPI in front of two servers: their policies, affinity, and servers that end under load.
check_routers() {
  local name
  cmake --preset release --log-level=NOTICE >/dev/null &&
    cmake --build build/release -j "$jobs" --target moxie &&
    tools/python_env.sh build/python tests/server/requirements.txt || return 1
  for name in sglang-router smg; do
    tools/python_env.sh "build/routers/$name" "tests/routers/requirements-$name.txt" || return 1
  done
  MOXIE_BINARY=$PWD/build/release/moxie MOXIE_ROUTERS=$PWD/build/routers MOXIE_STRUCTURED_OUTPUT=1 \
    PYTHONDONTWRITEBYTECODE=1 build/python/bin/python -m pytest -q -p no:cacheprovider -m routers \
    tests/routers
}

# What deploy/ is for, run: Ray, Dynamo, Prometheus, a router, images; manifests against schemas.
check_deploy() {
  local python=build/deploy/python
  tools/setup.sh build test deploy &&
    cmake --preset release --log-level=NOTICE >/dev/null &&
    cmake --build build/release -j "$jobs" --target moxie &&
    tools/python_env.sh "$python" tests/deploy/requirements.txt &&
    tools/python_env.sh build/deploy/ray deploy/ray/requirements.txt &&
    tools/python_env.sh build/deploy/dynamo deploy/dynamo/requirements.txt --no-deps &&
    MOXIE_BINARY=$PWD/build/release/moxie MOXIE_RAY=$PWD/build/deploy/ray/bin \
      MOXIE_DYNAMO=$PWD/build/deploy/dynamo/bin/python PYTHONDONTWRITEBYTECODE=1 \
      "$python/bin/python" -m pytest -q -p no:cacheprovider ${DEPLOY_FLAGS:-} tests/deploy
}

# The page of `moxie serve`, in a browser.
check_page() {
  cmake --preset release --log-level=NOTICE >/dev/null &&
    cmake --build build/release -j "$jobs" --target moxie &&
    tools/python_env.sh build/python_page tests/page/requirements.txt &&
    MOXIE_BINARY=$PWD/build/release/moxie PYTHONDONTWRITEBYTECODE=1 \
      build/python_page/bin/python -m pytest -q -rP -p no:cacheprovider tests/page
}

# The packages, built and installed where nothing of ours is.
check_package() {
  JOBS=$jobs tools/package.sh && tests/package/installed.sh
}

# The wheel moxie-ops, installed beside what it needs, on this machine's CPU.
check_ops() {
  local python=build/python_ops/bin/python
  cmake --preset release --log-level=NOTICE >/dev/null &&
    cmake --build build/release -j "$jobs" --target moxie &&
    JOBS=$jobs tools/ops_package.sh &&
    tools/python_env.sh build/python_ops tests/ops/requirements.txt &&
    "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
      --force-reinstall build/package-ops/moxie_ops-*.whl &&
    env -u PYTHONPATH -u MOXIE_OPS_LIBRARY MOXIE_BINARY="$PWD/build/release/moxie" \
      PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest -q -p no:cacheprovider tests/ops/test_moe_fp8.py
}

for argument in "$@"; do
  case "$argument" in
    --quick) quick=1 ;;
    --fix-format) format -i; exit ;;
    format | tidy | asan | tsan | fuzz | arm | routers | deploy | page | package | ops)
      steps+=("$argument") ;;
    *) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
if ((${#steps[@]} == 0)); then
  steps=(format tidy asan tsan fuzz routers deploy page package ops)
  ((quick)) && steps=(format tidy asan fuzz)
  if ((!quick)); then
    if command -v aarch64-linux-gnu-g++ >/dev/null; then
      steps+=(arm)
    else
      echo "check: arm is left out: its compiler is not installed (tools/setup.sh arm)"
    fi
  fi
fi

failed=()
for step in "${steps[@]}"; do
  echo "== check: $step"
  started=$SECONDS
  "check_$step" </dev/null || failed+=("$step")
  echo "== check: $step took $((SECONDS - started)) s"
done
if ((${#failed[@]})); then
  echo "check: FAILED: ${failed[*]} (of: ${steps[*]})"
  exit 1
fi
echo "check: all clean: ${steps[*]}"
