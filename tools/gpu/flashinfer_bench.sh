#!/usr/bin/env bash
# Has PyPI's flashinfer-bench judge moe_fp8_block_scale on this machine's GPU: its own evaluator, its
# own tolerances, all 19 workloads of a tree from `moxie op make-tree`. Before that it runs the tests
# of moxie_ops that need a device.
#
#   tools/gpu/flashinfer_bench.sh MOXIE WHEELS OUT [FLAG...]
#
# MOXIE: the program (build/gpu/moxie). WHEELS: a folder with moxie_ops and what of flashinfer-bench
# this machine's Python lacks (docs/fp8-moe.md lists them); they are installed into a folder of their
# own, without a network. FLAGs go to `flashinfer-bench run`. OUT gets flashinfer_bench.log,
# traces.jsonl, moxie_ops_tests.log and, as on the terminal, summary.txt.
# MOXIE_PYTHON names the interpreter, which must have PyTorch. Ends with 0 only if the tests passed
# and every workload is PASSED.
set -euo pipefail
if (($# < 3)); then
  sed -n '6p' "$0" | cut -c5- >&2
  exit 2
fi
mkdir -p "$3"
moxie=$(realpath "$1") wheels=$(realpath "$2") out=$(realpath "$3")
shift 3
cd "$(dirname "$0")/../.."
python=${MOXIE_PYTHON:-python3}
unset MOXIE_PYTHON # it is not for the program
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
status=0

"$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile \
  --no-cache-dir --target "$work/site" "$wheels"/*.whl
export PYTHONPATH=$work/site FIB_CACHE_PATH=$work/cache

"$python" -m pytest -q -rs -p no:cacheprovider tests/ops/test_moe_fp8_cuda.py 2>&1 |
  tee "$out/moxie_ops_tests.log" || status=1
if grep -q skipped "$out/moxie_ops_tests.log"; then
  echo "flashinfer_bench: tests were skipped: they need PyTorch and a GPU" >&2
  exit 1
fi

tree=$work/tree
"$moxie" op make-tree "$tree" --seed 1
definition=$(basename "$tree"/definitions/moe/*.json .json)
solution=$tree/solutions/moxie/moe/$definition/moxie.json
mkdir -p "$(dirname "$solution")"
"$python" -m moxie_ops.solution --definition "$definition" >"$solution"

"$python" "$work/site/bin/flashinfer-bench" run --local "$tree" "$@" 2>&1 |
  tee "$out/flashinfer_bench.log" || status=1
cp "$tree/traces/moe/$definition.jsonl" "$out/traces.jsonl"

"$python" - "$out/traces.jsonl" "$tree/workloads/moe/$definition.jsonl" <<'END' | tee "$out/summary.txt" || status=1
import json
import sys

traces, workloads = ([json.loads(line) for line in open(path)] for path in sys.argv[1:3])
print(f"{'T':>6} {'status':<20} {'matched':>8} {'ms':>9} {'reference ms':>13} {'speed-up':>9}")
for trace in sorted(traces, key=lambda trace: trace["workload"]["axes"]["seq_len"]):
    found = trace["evaluation"]
    correct, speed = found.get("correctness") or {}, found.get("performance") or {}
    matched = (correct.get("extra") or {}).get("matched_ratio")
    print(f"{trace['workload']['axes']['seq_len']:>6} {found['status']:<20} "
          f"{'' if matched is None else format(matched, '.4f'):>8} "
          f"{speed.get('latency_ms', 0):>9.4f} {speed.get('reference_latency_ms', 0):>13.3f} "
          f"{speed.get('speedup_factor', 0):>9.1f}")
passed = {trace["workload"]["uuid"] for trace in traces if trace["evaluation"]["status"] == "PASSED"}
print(f"{len(passed)} of {len(workloads)} workloads PASSED on "
      f"{', '.join({trace['evaluation']['environment']['hardware'] for trace in traces})}")
sys.exit(len(passed) < len(workloads))
END
exit "$status"
