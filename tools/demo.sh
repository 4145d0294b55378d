#!/usr/bin/env bash
# What `make run` shows: tools/demo.sh path/to/moxie. Without DEMO_PROMPT the embedded model
# answers a few prompts (reasoning, arithmetic, a tool call), then `moxie bench` says how near the
# machine's limits that was; with it, only that prompt is answered. Speed and kernels: on stderr.
set -euo pipefail
moxie=${1:?"usage: tools/demo.sh path/to/moxie"}
here=$(cd "$(dirname "$0")" && pwd)

ask() { # ask PROMPT [flags of moxie run]
  printf '\n> %s\n' "$1"
  "$moxie" run "${@:2}" --seed 1 -- "$1" 2>&1
}

if [[ -n ${DEMO_PROMPT:-} ]]; then
  ask "$DEMO_PROMPT"
  exit
fi

echo "The model inside this binary answers. It is small: sums, sorting, lookups, tools; not facts."
ask "What is 4127 + 985?" --reasoning-effort low
ask "What is 47 * 86?" --reasoning-effort high --show-reasoning
ask "Sort these numbers from small to large: 812, 45, 300, 7" --reasoning-effort medium --show-reasoning
ask "What is the weather in Oslo?" --reasoning-effort medium --show-reasoning \
  --tools "$here/demo_tools.json"

printf '\nHow fast, and how near this machine'"'"'s limits:\n'
"$moxie" bench -p 128 -n 32 -r 3 2>&1

cat <<END

Next:
  $moxie chat                      a conversation with it
  $moxie run "12 * 34" --show-reasoning
  $moxie chat --model DIR          a gpt-oss checkpoint: a Hugging Face directory or a .gguf file
  $moxie serve                     OpenAI and Anthropic endpoints on http://127.0.0.1:8000
END
