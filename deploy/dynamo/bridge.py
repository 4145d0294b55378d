"""A worker of NVIDIA Dynamo in front of a running `moxie serve`: chats, as text.

    moxie serve --reasoning-field reasoning_content --port 8000
    python deploy/dynamo/bridge.py --engine http://127.0.0.1:8000
    python -m dynamo.frontend --http-port 8080

All three with DYN_DISCOVERY_BACKEND=file and the same DYN_FILE_KV folder run without etcd and NATS.
Dynamo's frontend reads requests and speaks HTTP to clients; prompts are made by Moxie, so that
Dynamo's KV-aware routing sees no tokens here. requirements.txt says what to install.
"""

import argparse
import asyncio
import json
import os
import signal

import aiohttp
from dynamo.llm import HttpError, ModelInput, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime

# What Dynamo adds to a chat: a field for itself, and other models' words for a reasoning effort.
OWN_FIELDS = {"nvext"}
WORDS_FOR_EFFORT = {"enable_thinking", "thinking", "thinking_mode"}
END_S = 10


def flags():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engine", default="http://127.0.0.1:8000", help="the server's address")
    parser.add_argument("--model", help="name in Dynamo; default: the first that the server serves")
    parser.add_argument("--endpoint", default="moxie.backend.generate", help="Dynamo's endpoint")
    parser.add_argument("--api-key", default=os.environ.get("MOXIE_API_KEY"), help="the server's key")
    parser.add_argument("--start-timeout", type=float, default=1800, help="seconds to load the model")
    parser.add_argument("--drain-timeout", type=float, default=30,
                        help="seconds for running requests after SIGTERM")
    return parser.parse_args()


class Bridge:
    def __init__(self, session, model):
        self.session, self.model, self.running = session, model, 0
        self.is_idle = asyncio.Event()
        self.is_idle.set()

    async def generate(self, request, context):
        """Yields chat.completion.chunk objects. Dynamo joins them if the client wants no stream."""
        self.running += 1
        self.is_idle.clear()
        stopped = asyncio.ensure_future(context.async_killed_or_stopped())
        try:
            async for chunk in self.chunks(request, stopped):
                yield chunk
        finally:
            stopped.cancel()
            self.running -= 1
            if self.running == 0:
                self.is_idle.set()

    async def chunks(self, request, stopped):
        body = {name: value for name, value in request.items() if name not in OWN_FIELDS}
        body |= {"stream": True, "model": self.model}
        variables = body.get("chat_template_args") or {}
        if "reasoning_effort" in variables:
            body["chat_template_args"] = {name: value for name, value in variables.items()
                                          if name not in WORDS_FOR_EFFORT}
        # Dynamo counts by the usage of the last chunk.
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        async with self.session.post("/v1/chat/completions", json=body) as response:
            if response.status != 200:
                message = message_of(await response.text())
                print(f"bridge: the server answers {response.status}: {message}", flush=True)
                raise HttpError(response.status, message)
            lines = aiter(response.content)
            while True:
                line = asyncio.ensure_future(anext(lines, None))
                await asyncio.wait({line, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not line.done():  # the client has left: closing the connection ends the request
                    line.cancel()
                    return
                text = await line
                if text is None:
                    raise HttpError(502, "the server closed the stream before its end")
                if not text.startswith(b"data: "):
                    continue
                if text.strip() == b"data: [DONE]":
                    return
                chunk = json.loads(text[len(b"data: "):])
                if "error" in chunk:
                    raise HttpError(500, chunk["error"]["message"])
                yield chunk


def message_of(text):
    try:
        return json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return text


async def served_model(session, within_s):
    """The served name, once the model is loaded."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while loop.time() < end:
        try:
            async with session.get("/readyz") as ready:
                if ready.status == 200:
                    break
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.2)
    else:
        raise SystemExit(f"bridge: the server was not ready within {within_s:g} s")
    async with session.get("/v1/models") as models:
        if models.status != 200:
            raise SystemExit(f"bridge: /v1/models answers {models.status}: {await models.text()}")
        return (await models.json())["data"][0]["id"]


async def run(options):
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    async with aiohttp.ClientSession(
            base_url=options.engine, headers=headers, connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None), read_bufsize=2**20) as session:
        name = await served_model(session, options.start_timeout)
        runtime = DistributedRuntime(
            asyncio.get_running_loop(), os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"),
            os.environ.get("DYN_REQUEST_PLANE", "tcp"))
        endpoint = runtime.endpoint(options.endpoint)
        bridge = Bridge(session, name)
        await register_model(ModelInput.Text, ModelType.Chat, endpoint, name, options.model or name,
                             worker_type=WorkerType.Aggregated, skip_model_assets=True)
        serving = asyncio.ensure_future(endpoint.serve_endpoint(bridge.generate))
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            return await serving
        await endpoint.unregister_endpoint_instance()  # the frontend sends nothing more
        try:
            await asyncio.wait_for(bridge.is_idle.wait(), options.drain_timeout)
        except TimeoutError:
            print(f"bridge: {bridge.running} requests are cut off", flush=True)
        runtime.shutdown()
        await asyncio.wait({serving}, timeout=END_S)


if __name__ == "__main__":
    asyncio.run(run(flags()))
