"""What a watcher costs: 64 streams with and without a client of /v1/watch at 500 ms, alternately.
    page_cost.py MOXIE [PAIRS] [TOKENS]
Prints tokens a second and the server's processor time a token of each run, and of both the mean ratio
of the pairs with its 95% confidence interval. On a busy machine the second is the one to look at.
The streams are completions that ignore their end, so that all runs do the same work."""

import math
import os
import statistics
import sys
import threading
import time

from server import Server

STREAMS = 64
# Quantile 0.975 of Student's distribution, by degrees of freedom; 2 beyond the table.
T = {2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 9: 2.26, 11: 2.20, 15: 2.13, 19: 2.09}


def stream(server, number, tokens):
    with server.connect() as connection:
        connection.send_request("POST", "/v1/completions", {
            "prompt": f"{number} numbers: ", "max_tokens": tokens, "ignore_eos": True, "stream": True})
        assert connection.read_response().status == 200


def measured(server, tokens):
    """Tokens a second, and the server's processor time a token in seconds."""
    threads = [threading.Thread(target=stream, args=(server, number, tokens)) for number in range(STREAMS)]
    cpu_s, start = server.metric("process_cpu_seconds_total"), time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - start
    cpu_s = server.metric("process_cpu_seconds_total") - cpu_s
    return STREAMS * tokens / seconds, cpu_s / (STREAMS * tokens)


def watched(server, tokens):
    with server.connect() as watcher:
        watcher.send_request("GET", "/v1/watch?interval_ms=500")
        assert watcher.read_head()[0] == 200
        return measured(server, tokens)


def report(name, ratios):
    half = T.get(len(ratios) - 1, 2) * statistics.stdev(ratios) / math.sqrt(len(ratios))
    print(f"{name}, watched over plain: {statistics.mean(ratios):.4f} +- {half:.4f} (95%), median "
          f"{statistics.median(ratios):.4f}, {len(ratios)} pairs")


def main(binary, pairs=8, tokens=60):
    os.environ["MOXIE_BINARY"] = binary
    speeds, costs = [], []
    with Server("--threads", "1", "--no-access-log") as server:
        server.measured()
        measured(server, tokens)
        for number in range(pairs):
            runs = [("plain", measured), ("watched", watched)]
            found = {name: run(server, tokens) for name, run in (runs if number % 2 else runs[::-1])}
            speeds.append(found["watched"][0] / found["plain"][0])
            costs.append(found["watched"][1] / found["plain"][1])
            print(f"pair {number + 1}: " + ", ".join(
                f"{name} {speed:.0f} tok/s, {cpu_s * 1e6:.1f} CPU us a token"
                for name, (speed, cpu_s) in found.items()), flush=True)
    report("tokens a second", speeds)
    report("CPU time a token", costs)


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:]))
