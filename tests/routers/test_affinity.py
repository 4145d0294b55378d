"""What a policy that knows prompts gains: the share of prompt tokens found in the workers' caches.

30 prompts of about 1,100 tokens are asked four times each, four at a time. The first time a prompt
finds only the head that all chats have, so that the best share is a little above three quarters.
"""

import concurrent.futures
import random

import pytest

from router import Router
from server import MODEL, Server

pytestmark = pytest.mark.routers

PROMPTS, TURNS, CONCURRENCY = 30, 4, 4
TOKENS = (1000, 1200)  # of a prompt
HITS, PROMPT = "vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_total"


def prompts():
    numbers = random.Random(1)
    return [" + ".join(str(numbers.randrange(100, 1000)) for _ in range(206))
            for _ in range(PROMPTS)]


def counts(workers):
    return [[worker.metric(name) for name in (HITS, PROMPT)] for worker in workers]


def cached_share(policy):
    """Of all prompt tokens of the workers behind a router with this policy."""
    with Server("--threads", "1") as first, Server("--threads", "1") as second:
        workers = [first, second]
        with Router("vllm-router", policy, workers) as router:
            before = counts(workers)
            orders = random.Random(2)
            turns = [prompt for _ in range(TURNS) for prompt in orders.sample(prompts(), PROMPTS)]

            def ask(prompt):
                response = router.chat(prompt, model=MODEL, max_tokens=2, temperature=0)
                assert response.status == 200, response.text
                usage = response.json()["usage"]
                assert TOKENS[0] < usage["prompt_tokens"] < TOKENS[1]
                return usage["prompt_tokens"]

            with concurrent.futures.ThreadPoolExecutor(CONCURRENCY) as clients:
                asked = sum(clients.map(ask, turns))
            deltas = [[now - start for now, start in zip(*pair)]
                      for pair in zip(counts(workers), before)]
            assert sum(tokens for _, tokens in deltas) == asked
            assert all(tokens > 0 for _, tokens in deltas)
            return sum(hits for hits, _ in deltas) / asked


def test_prompts_find_the_worker_that_has_them():
    aware, blind = cached_share("cache_aware"), cached_share("round_robin")
    print(f"cached: cache_aware {aware:.3f}, round_robin {blind:.3f}")
    assert aware > 0.75
    assert blind < aware - 0.1
