#!/usr/bin/env bash
# Makes the Python environment of the end-to-end tests, from PyPI, where it is missing or its list
# has changed:
#   tools/python_env.sh FOLDER REQUIREMENTS [PIP_FLAG...]
# FOLDER/bin/python is then the interpreter. Safe to run twice at once.
set -euo pipefail

folder=$1 requirements=$2
shift 2
mkdir -p "$folder"
exec 9>"$folder.lock"
flock 9
stamp="$folder/made-from"
if [[ -x $folder/bin/python ]] && cmp -s "$requirements" "$stamp"; then exit 0; fi

echo "python_env: installing the clients of $requirements"
rm -rf "$folder"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! python3 -m venv "$folder" >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "python_env: python3 cannot make an environment: run tools/setup.sh test" >&2
  exit 1
fi
if ! "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
  "$@" -r "$requirements" >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "python_env: pip could not install the clients: see above" >&2
  exit 1
fi
cp "$requirements" "$stamp"
