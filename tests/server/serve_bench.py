"""Times a server that is already running, from prompts of token numbers (no tokenizer in the way).

    python3 serve_bench.py lengths PORT [--vocab N] [--times 10] LENGTH...
        Prompts of lengths that the process has not seen, each so many times with other tokens: how
        long the first takes beside the median of the others.
    python3 serve_bench.py together PORT [--vocab N] [--requests 256] [--input 1024] [--output 256]
        So many requests at once: tokens out a second, from the first request to the last answer.

Prints one JSON document.
"""

import argparse
import concurrent.futures
import http.client
import json
import random
import statistics
import time

MOST_S = 600


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=MOST_S)
    connection.request("GET", path)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def complete(port, model, tokens, num_out):
    """The milliseconds of one request; it must give as many tokens as asked for."""
    body = json.dumps({"model": model, "prompt": tokens, "max_tokens": num_out, "temperature": 0,
                       "ignore_eos": True})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=MOST_S)
    begin = time.monotonic()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    seconds = time.monotonic() - begin
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"{answer.status}: {text[:500]}")
    usage = json.loads(text)["usage"]
    if (usage["prompt_tokens"], usage["completion_tokens"]) != (len(tokens), num_out):
        raise SystemExit(f"not what was asked for: {usage}")
    return 1e3 * seconds


def lengths(args, prompt_of):
    complete(args.port, args.model, prompt_of(8), 1)  # the connection's own first time
    results = []
    for length in args.length:
        times = [complete(args.port, args.model, prompt_of(length), 1) for _ in range(args.times)]
        results.append({"length": length, "first_ms": round(times[0], 3),
                        "others_ms": round(statistics.median(times[1:]), 3),
                        "slowest_other_ms": round(max(times[1:]), 3)})
    shares = [r["first_ms"] / r["others_ms"] for r in results]
    return {"lengths": results, "first_to_others_median": round(statistics.median(shares), 3),
            "first_to_others_most": round(max(shares), 3)}


def together(args, prompt_of):
    prompts = [prompt_of(args.input) for _ in range(args.requests)]
    with concurrent.futures.ThreadPoolExecutor(args.requests) as pool:
        begin = time.monotonic()
        times = list(pool.map(lambda tokens: complete(args.port, args.model, tokens, args.output), prompts))
        seconds = time.monotonic() - begin
    return {"requests": args.requests, "input": args.input, "output": args.output,
            "seconds": round(seconds, 3), "tok_s": round(args.requests * args.output / seconds, 1),
            "median_request_ms": round(statistics.median(times), 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["lengths", "together"])
    parser.add_argument("port", type=int)
    parser.add_argument("length", type=int, nargs="*")
    parser.add_argument("--vocab", type=int, default=2000, help="token numbers are below it")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--input", type=int, default=1024)
    parser.add_argument("--output", type=int, default=256)
    args = parser.parse_intermixed_args()
    args.model = get(args.port, "/v1/models")["data"][0]["id"]
    numbers = random.Random()  # prompts that no cache has

    def prompt_of(length):
        return [numbers.randrange(args.vocab) for _ in range(length)]

    run = lengths if args.what == "lengths" else together
    print(json.dumps(run(args, prompt_of), indent=2))


if __name__ == "__main__":
    main()
