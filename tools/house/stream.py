"""Rows of tokens to learn from, made by worker processes while the model trains."""
import multiprocessing
import os
import queue
import random
import time

import numpy as np
from tokenizers import Tokenizer

from library import Library
from tasks import LONG_SHARE, MIXES, conversation, long_conversation
from tokenizer import BEGIN, END, ROLES

CHUNK_ROWS = 32
LONG_ROW = 1500        # rows of at least so many tokens may hold one long conversation
CHARACTERS = 3.8       # per token, about; for choosing how much text goes into a row
WEIGHT_UNIT = 100


class Encoder:
    """Conversations as tokens, each with its weight in the loss."""

    def __init__(self, path):
        self.tokenizer = Tokenizer.from_file(str(path))
        self.begin, self.end = self.tokenizer.token_to_id(BEGIN), self.tokenizer.token_to_id(END)
        self.roles = {role: self.tokenizer.token_to_id(token) for role, token in ROLES.items()}

    def plain(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode(self, turns):
        ids, weights = [self.begin], [0]
        for role, pieces in turns:
            if role in self.roles:
                ids.append(self.roles[role])
                weights.append(0)
            encoded = self.tokenizer.encode("".join(text for text, _ in pieces), add_special_tokens=False)
            ids += encoded.ids
            if len(pieces) == 1:
                weights += [round(WEIGHT_UNIT * pieces[0][1])] * len(encoded.ids)
            else:
                ends, total = [], 0
                for text, weight in pieces:
                    total += len(text)
                    ends.append((total, round(WEIGHT_UNIT * weight)))
                at = 0
                for start, _ in encoded.offsets:
                    while start >= ends[at][0]:
                        at += 1
                    weights.append(ends[at][1])
            ids.append(self.end)
            weights.append(WEIGHT_UNIT if role in ("assistant", "raw") else 0)
        return ids, weights

    def prompt(self, text, system=None):
        """The tokens after which the model answers."""
        ids = [self.begin]
        if system:
            ids += [self.roles["system"], *self.plain(system), self.end]
        return ids + [self.roles["user"], *self.plain(text), self.end, self.roles["assistant"]]


def make_row(rng, library, encoder, length, mix=MIXES["all"]):
    """Conversations until `length` tokens are full; the last one may be cut."""
    ids, weights = [], []
    if length >= LONG_ROW and rng.random() < LONG_SHARE:
        ids, weights = encoder.encode(long_conversation(rng, library, CHARACTERS * length))
    while len(ids) < length:
        more, their_weights = encoder.encode(conversation(rng, library, CHARACTERS * min(length, 1024), mix))
        ids += more
        weights += their_weights
    return ids[:length], weights[:length]


def work(seed, tokenizer, length, mix, out):
    os.nice(10)  # the trainer and its compiler go first
    rng, library, encoder = random.Random(seed), Library(), Encoder(tokenizer)
    while length.value:
        tokens = length.value + 1
        ids, weights = np.zeros((CHUNK_ROWS, tokens), np.uint16), np.zeros((CHUNK_ROWS, tokens), np.uint8)
        for row in range(CHUNK_ROWS):
            ids[row], weights[row] = make_row(rng, library, encoder, tokens, MIXES[mix])
        out.put((ids, weights))


class Stream:
    """Batches of the length asked for. Rows are new as long as the workers keep up; otherwise recent ones come again."""

    def __init__(self, tokenizer, seed, workers, length, mix="all"):
        context = multiprocessing.get_context("spawn")
        self.length, self.queue, self.pool, self.rng = context.Value("i", length), context.Queue(96), [], random.Random(seed)
        self.fresh = self.total = 0
        self.processes = [context.Process(target=work, args=(seed * 1000 + i, tokenizer, self.length, mix, self.queue), daemon=True) for i in range(workers)]
        for process in self.processes:
            process.start()

    def set_length(self, length):
        if length != self.length.value:
            self.length.value, self.pool = length, []

    def chunk(self):
        self.total += 1
        while True:
            try:
                ids, weights = self.queue.get(block=len(self.pool) < 8)
            except queue.Empty:
                return self.rng.choice(self.pool)
            if ids.shape[1] == self.length.value + 1:
                self.fresh += 1
                if len(self.pool) < 512:
                    self.pool.append((ids, weights))
                else:
                    self.pool[self.rng.randrange(512)] = ids, weights
                return ids, weights

    def batch(self, rows):
        """rows must be a multiple of CHUNK_ROWS or divide it."""
        if rows >= CHUNK_ROWS:
            chunks = [self.chunk() for _ in range(rows // CHUNK_ROWS)]
            return np.concatenate([c[0] for c in chunks]), np.concatenate([c[1] for c in chunks])
        ids, weights = self.chunk()
        start = self.rng.randrange(CHUNK_ROWS // rows) * rows
        return ids[start:start + rows], weights[start:start + rows]

    def stop(self):
        self.length.value = 0
        time.sleep(0.1)
        for process in self.processes:
            process.terminate()
