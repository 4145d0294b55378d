"""What events of the KV cache cost: the rate of 64 streams through a server that publishes them to a
reader, beside a server that does not. Both run; each round loads one after the other, in turns, so
that both meet the same machine. Prints the mean ratio with its 95% interval, and the share of the
server's processor time that the threads of events take, which a busy machine disturbs less.

    MOXIE_BINARY=build/release/moxie python3 events_cost.py LOAD_STREAMS [ROUNDS [STREAMS [TOKENS]]]

LOAD_STREAMS is the client, moxie_load_streams (built with -DMOXIE_BENCHES=ON). Needs pyzmq and msgspec.
"""

import json
import math
import statistics
import subprocess
import sys
import threading

from kv_events import Reader, flags
from server import Server, clean_environment

SERVER = ("--no-access-log", "--max-model-len", "2048")
# Of Student's distribution, 97.5%, for 2, 3, ... rounds.
QUANTILES = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14]


def load(client, server, streams, tokens):
    done = subprocess.run([client, "completions", str(server.port), str(streams), str(tokens),
                           str(server.process.pid)], stdout=subprocess.PIPE, env=clean_environment(), check=True)
    return json.loads(done.stdout)


def read_until(reader, ends):
    while not ends.is_set():
        if came := reader.receive(0.2):
            reader.read(*came)


def main(client, rounds=8, streams=64, tokens=256):
    ratios, shares = [], []
    with Server(*SERVER) as plain, Server(*SERVER, *flags()) as events, Reader(events) as reader:
        reader.heal()
        ends = threading.Event()
        reads = threading.Thread(target=read_until, args=(reader, ends))
        reads.start()
        try:
            for server in (plain, events):
                load(client, server, streams, tokens)
            for number in range(rounds):
                order = (plain, events) if number % 2 == 0 else (events, plain)
                done = {server: load(client, server, streams, tokens) for server in order}
                ratios.append(done[events]["tok_s"] / done[plain]["tok_s"])
                threads = done[events]["threads"]
                added = sum(of for name, of in threads.items() if name.startswith(("kv-events", "ZMQ")))
                shares.append(added / sum(threads.values()))
                print(f"round {number + 1}: {done[plain]['tok_s']:.0f} tok/s without, "
                      f"{done[events]['tok_s']:.0f} with: {ratios[-1]:.3f}; the threads of events take "
                      f"{shares[-1]:.3%} of the processor time", flush=True)
        finally:
            ends.set()
            reads.join()
        reader.catch_up(lambda: reader.agrees(events))
        print(f"the reader has {reader.next} batches, {reader.held.num_stored} pages stored and "
              f"{reader.held.num_removed} removed")
    print(f"the threads of events take {statistics.mean(shares):.3%} of the processor time")
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.mean(logs)
    if rounds > 1:
        quantile = QUANTILES[min(rounds, len(QUANTILES) + 1) - 2]
        half = quantile * statistics.stdev(logs) / math.sqrt(rounds)
        print(f"with events {math.exp(mean):.3f} of the rate without, 95% interval "
              f"{math.exp(mean - half):.3f} to {math.exp(mean + half):.3f} ({rounds} rounds)")
    else:
        print(f"with events {math.exp(mean):.3f} of the rate without (one round)")


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:]))
