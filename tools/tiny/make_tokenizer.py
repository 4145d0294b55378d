#!/usr/bin/env python3
"""Trains the embedded model's tokenizer on generated conversations and writes tokenizer.json.

Byte-level BPE with the o200k split; 4,064 text tokens and 32 control tokens at the top, in gpt-oss's order.
Digits are split one by one while merges are learned, so that no token holds two digits.
"""
import argparse
import json
import random
import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import generate

VOCAB, TEXT = 4096, 4064
SPLIT = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
CONTROL = {0: "<|startoftext|>", 1: "<|endoftext|>", 4: "<|return|>", 5: "<|constrain|>", 7: "<|channel|>", 8: "<|start|>", 9: "<|end|>", 10: "<|message|>", 14: "<|call|>"}


def control_tokens():
    return [CONTROL.get(i, f"<|reserved_{TEXT + i}|>") for i in range(VOCAB - TEXT)]


def pieces(split):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def texts(count):
    """Conversation text without control tokens; long documents are cut so that they do not crowd out the rest."""
    rng = random.Random(20260101)
    for _ in range(count):
        for text, _ in generate.conversation(rng):
            for piece in re.split(r"<\|[a-z]+\|>", text):
                if piece:
                    yield piece[:1500]


def all_splits(vocab):
    """Every split of every token into two tokens, by rank: merging then follows ranks alone, as tiktoken does."""
    merges = []
    for token in sorted((t for t in vocab if len(t) > 1), key=vocab.get):
        splits = [[token[:i], token[i:]] for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        merges += sorted(splits, key=lambda s: (vocab[s[0]], vocab[s[1]]))
    return merges


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60000)
    parser.add_argument("--out", default="models/tiny/tokenizer.json")
    args = parser.parse_args()
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pieces(SPLIT.replace("{1,3}", ""))
    trainer = trainers.BpeTrainer(vocab_size=TEXT, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[], max_token_length=16, show_progress=False)
    tok.train_from_iterator(texts(args.count), trainer)
    tok.pre_tokenizer = pieces(SPLIT)
    tok.decoder = decoders.ByteLevel()
    assert tok.get_vocab_size() == TEXT, tok.get_vocab_size()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control_tokens()])
    assert tok.get_vocab_size() == VOCAB and tok.token_to_id("<|call|>") == TEXT + 14
    doubles = [t for t in tok.get_vocab() if not t.startswith("<|") and len(re.findall(r"\d", t)) and len(t) > 1]
    assert not doubles, doubles[:10]
    tok.save(args.out, pretty=False)
    state = json.load(open(args.out))
    state["model"]["merges"] = all_splits(state["model"]["vocab"])
    state["model"]["ignore_merges"] = True
    json.dump(state, open(args.out, "w"), ensure_ascii=False, separators=(",", ":"))
    print("text tokens", TEXT, "vocabulary", VOCAB)


if __name__ == "__main__":
    main()
