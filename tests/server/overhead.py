"""What HTTP costs: the rate of 64 streams through the server beside `moxie bench -b 64`, in turns, so
that both meet the same machine. Medians, and the processor time a token of the server's threads.

    MOXIE_BINARY=build/release/moxie python3 overhead.py LOAD_STREAMS [completions|chat [ROUNDS [STREAMS [TOKENS]]]]

LOAD_STREAMS is the client, moxie_load_streams (built with -DMOXIE_BENCHES=ON).
"""

import json
import os
import statistics
import subprocess
import sys

from server import Server, clean_environment

CONTEXT = "2048"


def output_of(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, env=clean_environment(), check=True)
    return json.loads(done.stdout)


def bench(depth, tokens, streams):
    """The same depths and tokens without a server."""
    tests = output_of(os.environ["MOXIE_BINARY"], "bench", "-p", "0", "-n", str(tokens), "-d", str(depth),
                      "-b", str(streams), "-r", "3", "--max-model-len", CONTEXT, "--json")["tests"]
    return tests[0]["tok_s"]["median"]


def main(client, endpoint="completions", rounds=5, streams=64, tokens=256):
    rates = {"bench": [], "http": []}
    with Server("--no-access-log", "--max-model-len", CONTEXT) as server:
        load = (client, endpoint, str(server.port), str(streams), str(tokens))
        output_of(*load)
        depth = round(server.metric("vllm:request_prompt_tokens_sum") / streams)
        for number in range(rounds):
            rates["bench"].append(bench(depth, tokens, streams))
            steps, device = (server.metric(name) for name in ("moxie:steps_total", "moxie:device_seconds_total"))
            one = output_of(*load, str(server.process.pid))
            steps = server.metric("moxie:steps_total") - steps
            device = server.metric("moxie:device_seconds_total") - device
            rates["http"].append(one["tok_s"])
            print(f"round {number + 1}: bench {rates['bench'][-1]:.0f} tok/s, HTTP {one['tok_s']:.0f} tok/s, "
                  f"{rates['http'][-1] / rates['bench'][-1]:.1%}; {device / steps * 1e3:.2f} ms a step on the "
                  f"device; CPU us a token: client {one['client_cpu_s'] / one['tokens'] * 1e6:.1f}, " +
                  ", ".join(f"{name} {seconds / one['tokens'] * 1e6:.1f}"
                            for name, seconds in one["threads"].items() if seconds > 1e-3), flush=True)
    medians = {name: statistics.median(of) for name, of in rates.items()}
    print(f"medians of {rounds}: bench {medians['bench']:.0f} tok/s, HTTP {medians['http']:.0f} tok/s: "
          f"{medians['http'] / medians['bench']:.1%} (median of the rounds' shares "
          f"{statistics.median(h / b for h, b in zip(rates['http'], rates['bench'])):.1%})")


if __name__ == "__main__":
    main(*sys.argv[1:3], *(int(word) for word in sys.argv[3:]))
