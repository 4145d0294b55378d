"""Generated conversations to packed token rows, by worker processes that write shards into a folder.

A row holds whole documents one after another. Arrays of a shard, all [rows, length]: `ids` uint16;
`labels` int16, the token to predict at each place or -1; `starts` int16, where the token's document begins.
"""
import os
import time

import numpy as np
from tokenizers import Tokenizer

import generate
import harmony as H

LENGTH = 4096


class Encoder:
    """Documents to ids and labels."""

    def __init__(self, path):
        self.tok = Tokenizer.from_file(path)
        self.end, self.ret = self.tok.token_to_id("<|end|>"), self.tok.token_to_id("<|return|>")
        self.pad = self.tok.token_to_id("<|endoftext|>")

    def many(self, docs):
        """[(ids, labels)] of documents in the generator's form."""
        flat = [text for doc in docs for text, _ in doc]
        encoded = self.tok.encode_batch_fast(flat, add_special_tokens=False)
        out, at = [], 0
        for doc in docs:
            ids, targets = [], []
            for text, mode in doc:
                piece = encoded[at].ids
                at += 1
                ids += piece
                targets += piece if mode == H.TRAINED else [self.ret] * len(piece) if mode == H.HISTORY_END else [-1] * len(piece)
            out.append((ids, targets[1:] + [-1]))
        return out


class Packer:
    """Puts documents into rows, first fit among a few open rows."""

    def __init__(self, pad, length=LENGTH, num_open=48):
        self.pad, self.length, self.num_open = pad, length, num_open
        self.open, self.done = [], []

    def add(self, ids, labels):
        n = len(ids)
        if n > self.length:
            return False
        for row in self.open:
            if row[0] + n <= self.length:
                break
        else:
            if len(self.open) >= self.num_open:
                self.close(max(self.open, key=lambda r: r[0]))
            row = [0, []]
            self.open.append(row)
        row[1].append((row[0], ids, labels))
        row[0] += n
        if row[0] >= self.length - 24:
            self.close(row)
        return True

    def close(self, row):
        self.open.remove(row)
        ids = np.full(self.length, self.pad, np.uint16)
        labels = np.full(self.length, -1, np.int16)
        starts = np.full(self.length, row[0], np.int16)
        for at, i, l in row[1]:
            ids[at:at + len(i)], labels[at:at + len(i)], starts[at:at + len(i)] = i, l, at
        self.done.append((ids, labels, starts, row[1]))

    def flush(self):
        for row in list(self.open):
            self.close(row)


def worker(index, seed, folder, tokenizer, rows_per_shard, max_waiting, length=LENGTH):
    """Writes shards until the folder is gone; waits while enough of its shards are unread."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    enc = Encoder(tokenizer)
    packer = Packer(enc.pad, length)
    docs = generate.conversations(seed)
    num = 0
    while os.path.isdir(folder):
        while len(packer.done) < rows_per_shard:
            for ids, labels in enc.many([next(docs) for _ in range(200)]):
                packer.add(ids, labels)
        rows, packer.done = packer.done[:rows_per_shard], packer.done[rows_per_shard:]
        while os.path.isdir(folder) and sum(f.startswith(f"w{index}_") for f in os.listdir(folder)) >= max_waiting:
            time.sleep(0.05)
        try:
            name = os.path.join(folder, f"w{index}_{num}")
            np.save(name + ".tmp.npy", np.stack([np.stack([r[0].astype(np.int16), r[1], r[2]]) for r in rows]))
            os.rename(name + ".tmp.npy", name + ".npy")
        except FileNotFoundError:
            return
        num += 1
