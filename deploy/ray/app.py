"""Moxie as a Ray Serve application: a replica is a `moxie serve` process and passes HTTP through.

    pip install -r deploy/ray/requirements.txt
    MOXIE_BINARY=build/release/moxie serve run deploy.ray.app:app model=embedded replicas=2

from the root of a clone. Arguments (`name=value`, or `args` in a Serve config file) are those of
`Arguments` below. The engine batches by itself: a replica takes many requests at once.
"""

import asyncio
import ctypes
import os
import shlex
import signal
import socket
import subprocess
import sys

import aiohttp
from pydantic import BaseModel, ConfigDict
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse

# Headers of one connection, which are not passed on (RFC 9110, 7.6.1), and those set anew.
OWN_HEADERS = {"connection", "content-length", "host", "keep-alive", "proxy-authenticate",
               "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"}
END_S = 15  # beyond the drain, for the process to end
PR_SET_PDEATHSIG = 1


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")
    model: str = "embedded"
    replicas: int = 1
    cpus: float = 1  # a replica; also the engine's threads, rounded down
    gpus: float = 0  # a replica; above 0: --device cuda
    flags: str = ""  # further flags of `moxie serve`
    start_s: float = 1800  # to load the model
    drain_s: float = 30  # for running requests when a replica ends
    max_ongoing: int = 1024  # requests that a replica takes at once, running and waiting
    health_period_s: float = 5


def ends_with_its_parent():
    """In the child: SIGTERM when the replica ends without a goodbye, so that no engine stays behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@serve.deployment
class Engine:
    async def __init__(self, arguments: dict):
        self.process = None
        self.session = None
        self.arguments = Arguments(**arguments)
        self.port = free_port()
        self.process = subprocess.Popen(
            self.command(), stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=ends_with_its_parent)
        self.session = aiohttp.ClientSession(
            base_url=f"http://127.0.0.1:{self.port}", auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))
        await self.wait_ready()

    def command(self):
        a = self.arguments
        return [os.environ.get("MOXIE_BINARY", "moxie"), "serve", "--model", a.model,
                "--host", "127.0.0.1", "--port", str(self.port), "--drain-timeout", f"{a.drain_s:g}",
                "--threads", str(max(1, int(a.cpus))), "--device", "cuda" if a.gpus > 0 else "cpu",
                *shlex.split(a.flags)]

    async def wait_ready(self):
        loop = asyncio.get_running_loop()
        end = loop.time() + self.arguments.start_s
        while loop.time() < end:
            self.check_process()
            if await self.status("/readyz") == 200:
                return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"the model was not loaded within {self.arguments.start_s:g} s")

    def check_process(self):
        code = self.process.poll()
        if code is not None:
            raise RuntimeError(f"moxie serve has ended with code {code}: see the replica's log")

    async def status(self, path):
        try:
            async with self.session.get(path, timeout=aiohttp.ClientTimeout(total=5)) as response:
                return response.status
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def check_health(self):
        """Ray replaces the replica when this raises."""
        self.check_process()
        status = await self.status("/livez")
        if status != 200:
            raise RuntimeError(f"/livez answers {status}")

    async def __call__(self, request: Request):
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = [(name, value) for name, value in request.headers.items()
                   if name.lower() not in OWN_HEADERS]
        body = await request.body()
        try:
            response = await self.session.request(request.method, path, headers=headers, data=body or None)
        except aiohttp.ClientError as fault:
            error = {"message": f"the engine does not answer: {fault}", "type": "server_error",
                     "param": None, "code": "engine_unavailable"}
            return JSONResponse({"error": error}, status_code=503, headers={"Retry-After": "1"})
        kept = {name: value for name, value in response.headers.items()
                if name.lower() not in OWN_HEADERS}
        return StreamingResponse(self.pieces(response), status_code=response.status, headers=kept)

    async def pieces(self, response):
        """What the engine sends, as it comes. A client that leaves ends this, and with it the request."""
        try:
            async for piece in response.content.iter_any():
                yield piece
        finally:
            response.close()

    def __del__(self):
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(self.arguments.drain_s + END_S / 2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def app(args: dict):
    arguments = Arguments(**args)
    return Engine.options(
        num_replicas=arguments.replicas,
        max_ongoing_requests=arguments.max_ongoing,
        ray_actor_options={"num_cpus": arguments.cpus, "num_gpus": arguments.gpus},
        health_check_period_s=arguments.health_period_s,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=arguments.drain_s + END_S,
    ).bind(arguments.model_dump())
