"""Moxie from Python: the program `moxie` and a client that starts and ends a server.

    import moxie
    with moxie.Server(model="embedded") as server:
        print(server.chat("What is 17 + 25?"))
"""

from .binary import BinaryNotFound, find_binary
from .server import RequestFailed, Server, ServerFailed

__all__ = ["BinaryNotFound", "RequestFailed", "Server", "ServerFailed", "find_binary"]
