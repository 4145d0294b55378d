"""What a watcher costs: 64 streams with and without a client of /v1/watch at 500 ms, alternately.
    page_cost.py MOXIE [PAIRS] [TOKENS]
Prints the tokens a second of each run, and the mean ratio of the pairs with its 95% confidence interval.
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


def rate(server, tokens):
    threads = [threading.Thread(target=stream, args=(server, number, tokens)) for number in range(STREAMS)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return STREAMS * tokens / (time.monotonic() - start)


def watched_rate(server, tokens):
    with server.connect() as watcher:
        watcher.send_request("GET", "/v1/watch?interval_ms=500")
        assert watcher.read_head()[0] == 200
        return rate(server, tokens)


def main(binary, pairs=8, tokens=60):
    os.environ["MOXIE_BINARY"] = binary
    ratios = []
    with Server("--threads", "1", "--no-access-log") as server:
        server.measured()
        rate(server, tokens)
        for number in range(pairs):
            runs = [("plain", rate), ("watched", watched_rate)]
            found = {name: run(server, tokens) for name, run in (runs if number % 2 else runs[::-1])}
            ratios.append(found["watched"] / found["plain"])
            print(f"pair {number + 1}: plain {found['plain']:.0f} tok/s, watched {found['watched']:.0f} tok/s: "
                  f"{ratios[-1]:.4f}", flush=True)
    half = T.get(pairs - 1, 2) * statistics.stdev(ratios) / math.sqrt(pairs)
    print(f"watched over plain: {statistics.mean(ratios):.4f} +- {half:.4f} (95%), median "
          f"{statistics.median(ratios):.4f}, {pairs} pairs")


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:]))
