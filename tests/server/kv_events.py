"""Reads events of the KV cache as strict readers do: every field is checked, and so is every event
against those before it. Needs pyzmq and msgspec (requirements.txt).
"""

import json
import struct
import time
from typing import Annotated

import msgspec
import zmq

from server import HANG_S

END = 2**64 - 1
Hash = Annotated[int, msgspec.Meta(ge=1)]  # of 64 bits, which apply() checks
Token = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Event(msgspec.Struct, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class BlockStored(Event):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[Token]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(Event):
    block_hashes: list[Hash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


decode = msgspec.msgpack.Decoder(Batch).decode


def flags(**fields):
    """Of a server that publishes on free ports of this machine; `fields` of the configuration."""
    return ["--kv-events-config", json.dumps({
        "enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:*",
        "replay_endpoint": "tcp://127.0.0.1:*", **fields})]


class Held:
    """What a reader of all batches holds: the parent, tokens and salt of each page."""

    def __init__(self):
        self.pages, self.known = {}, set()
        self.num_stored = self.num_removed = self.num_cleared = 0

    def apply(self, batch):
        assert batch.data_parallel_rank == 0
        assert abs(time.time() - batch.ts) < 2 * HANG_S
        assert batch.events
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.pages.clear()
                self.num_cleared += 1
                continue
            assert (event.medium, event.group_idx) == ("GPU", 0) and event.block_hashes
            assert max(event.block_hashes) < 2**64
            if isinstance(event, BlockRemoved):
                for page in event.block_hashes:
                    del self.pages[page]
                self.num_removed += len(event.block_hashes)
            else:
                self._store(event)

    def _store(self, event):
        assert event.kv_cache_spec_kind == "full_attention" and event.block_size == 16
        assert len(event.token_ids) == 16 * len(event.block_hashes)
        parent = event.parent_block_hash
        assert parent is None or parent in self.known, "a parent that was never stored"
        extra = event.extra_keys or [None] * len(event.block_hashes)
        assert len(extra) == len(event.block_hashes)
        for i, page in enumerate(event.block_hashes):
            assert page not in self.pages, "stored twice"
            assert extra[i] is None or parent is None, "a salt behind the first page"
            self.pages[page] = (parent, event.token_ids[16 * i:16 * i + 16], extra[i])
            self.known.add(page)
            parent = page
        self.num_stored += len(event.block_hashes)

    def chains(self):
        """(salt, tokens) of each page that has all pages before it."""
        found = []
        for page in self.pages:
            tokens, salt = [], None
            while page in self.pages:
                page, of_page, salt = self.pages[page]
                tokens = of_page + tokens
            if page is None:
                found.append((salt and salt[0], tokens))
        return found


class Reader:
    """Subscribes to a server's events and applies them in order."""

    def __init__(self, server, topic=b"", subscribes=True):
        self.source = server.get("/kv_event_sources").json()["0"]
        self.topic, self.held, self.next = topic, Held(), 0
        self.context = zmq.Context()
        if subscribes:
            self.subscribe()

    def subscribe(self):
        self.sub = self.context.socket(zmq.SUB)
        self.sub.subscribe(self.topic)
        self.sub.connect(self.source["endpoint"].replace("*", "127.0.0.1"))

    def receive(self, timeout=HANG_S):
        """The next batch and its number; None if none comes in time."""
        if not self.sub.poll(timeout * 1000):
            return None
        topic, number, payload = self.sub.recv_multipart()
        assert topic == self.topic and len(number) == 8
        return struct.unpack(">Q", number)[0], decode(payload)

    def read(self, number, batch):
        assert number == self.next
        self.held.apply(batch)
        self.next += 1

    def catch_up(self, done, within=HANG_S):
        """Reads until done(). A batch before the ones that are due is passed over."""
        end = time.monotonic() + within
        while not done():
            assert time.monotonic() < end, (self.next, len(self.held.pages))
            if (came := self.receive(0.05)) and came[0] >= self.next:
                self.read(*came)

    def replay(self, first, kind=zmq.DEALER):
        """The batches from `first` on, up to the mark of their end."""
        with self.context.socket(kind) as asks:
            asks.linger = 0
            asks.connect(self.source["replay_endpoint"].replace("*", "127.0.0.1"))
            delimiter = [] if kind == zmq.REQ else [b""]
            asks.send_multipart([*delimiter, struct.pack(">Q", first)])
            batches = []
            while True:
                assert asks.poll(HANG_S * 1000), "no answer"
                parts = asks.recv_multipart()
                assert parts[:len(delimiter)] == delimiter
                topic, number, payload = parts[len(delimiter):]
                number = struct.unpack(">Q", number)[0]
                if number == END:
                    assert (topic, payload) == (b"", b"")
                    return batches
                assert topic == self.topic
                batches.append((number, decode(payload)))
                if kind == zmq.REQ:  # it takes one answer
                    return batches

    def heal(self):
        """Applies what replay has from the next number on, also if that is a batch which tells the whole."""
        for number, batch in self.replay(self.next):
            assert number >= self.next
            if number > self.next:
                assert isinstance(batch.events[0], AllBlocksCleared)
            self.held.apply(batch)
            self.next = number + 1

    def heal_until_it_agrees(self, server, within=HANG_S):
        """The last batches are published behind the answer that made them."""
        end = time.monotonic() + within
        self.heal()
        while not self.agrees(server):
            assert time.monotonic() < end, (self.next, len(self.held.pages))
            self.heal()

    def agrees(self, server):
        """Whether it holds what the server has cached; no request may run."""
        assert server.idle(HANG_S)
        return len(self.held.pages) == server.metric("moxie:kv_pages_cached", 'layers="full"')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.destroy(linger=0)
