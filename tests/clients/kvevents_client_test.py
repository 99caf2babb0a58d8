#!/usr/bin/env python3
"""A server tells over ZeroMQ which blocks of its cache are where, and a reader who knows vLLM's format believes it.

Exits with 77 if pyzmq, msgpack or the system's libzmq are not there, with 1 if something is wrong.

  python3 tests/clients/kvevents_client_test.py --quire build/release/quire
"""
import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
import unittest

from replicas import Replica, get, post, wait_until

PROGRAM = ""
BLOCK = 32
END = (-1).to_bytes(8, "big", signed=True)
TOPIC = "kv@here@house"


def prompt(n, tokens):
    """Token ids that begin as no other number's do."""
    return [10 + (n * 7 + i * (n + 3)) % 90 for i in range(tokens)]


class Reader:
    """Believes what it is told: which blocks are at which medium, and what is in them."""

    def __init__(self):
        self.blocks = {}
        self.at = {}
        self.next = 0

    def take(self, number, payload):
        assert number == self.next, f"batch {number} came, {self.next} was to come"
        self.next += 1
        seconds, events, rank = msgpack.unpackb(payload)
        assert rank == 0 and abs(seconds - time.time()) < 3600
        for event in events:
            getattr(self, event.pop("type"))(**event)

    def BlockStored(self, block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name):
        assert lora_id is None and lora_name is None and block_size == BLOCK
        assert len(token_ids) == block_size * len(block_hashes) > 0
        for i, block in enumerate(block_hashes):
            assert block not in self.at.setdefault(medium, set())
            self.at[medium].add(block)
            self.blocks[block] = (parent_block_hash, token_ids[i * block_size:(i + 1) * block_size])
            parent_block_hash = block

    def BlockRemoved(self, block_hashes, medium):
        for block in block_hashes:
            self.at[medium].remove(block)

    def AllBlocksCleared(self):
        self.at = {}

    def prefix(self, block):
        parent, tokens = self.blocks[block]
        return (self.prefix(parent) if parent is not None else []) + tokens

    def prefixes(self, medium="GPU"):
        return {tuple(self.prefix(block)) for block in self.at.get(medium, ())}

    def cached(self, tokens, medium="GPU"):
        """How many of a prompt's tokens a router would say are cached there, in whole blocks."""
        there, found = self.prefixes(medium), 0
        while found + BLOCK < len(tokens) and tuple(tokens[:found + BLOCK]) in there:
            found += BLOCK
        return found


class Events(unittest.TestCase):
    def serve(self, *options):
        replica = Replica(PROGRAM, "--grace-seconds", "0", "--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*",
                          "--kv-events-topic", TOPIC, *options)
        self.addCleanup(replica.kill)
        self.process, self.url, self.cached = replica.process, replica.url, replica.cached
        self.places = replica.events()
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, 0)
        self.reader = Reader()
        self.heard = {}
        self.published = self.context.socket(zmq.SUB)
        self.published.connect(self.places["address"])
        self.published.setsockopt_string(zmq.SUBSCRIBE, TOPIC)

    def ask(self, tokens, **more):
        body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, **more}
        return post(self.url + "/v1/completions", body)

    def missed(self, first):
        """The batches from this one on, as the server says them again."""
        socket = self.context.socket(zmq.DEALER)
        socket.connect(self.places["replay_address"])
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        while True:
            empty, number, payload = socket.recv_multipart()
            self.assertEqual(empty, b"")
            if not payload:
                self.assertEqual(number, END)
                break
            batches.append((int.from_bytes(number, "big"), payload))
        socket.close(0)
        return batches

    def hear(self):
        """Takes what was published, and what came before the subscription did as a router would: by asking again."""
        while self.published.poll(50):
            topic, number, payload = self.published.recv_multipart()
            self.assertEqual(topic, TOPIC.encode())
            number = int.from_bytes(number, "big")
            self.assertNotIn(number, self.heard)
            self.heard[number] = payload
            if number > self.reader.next:
                for missed, again in self.missed(self.reader.next):
                    if missed < number:
                        self.reader.take(missed, again)
            self.reader.take(number, payload)
        return self.reader

    def test_what_is_cached_is_told_with_its_tokens(self):
        self.serve()
        first, second = prompt(1, 200), prompt(1, 100) + prompt(2, 100)
        self.ask(first)
        wait_until(lambda: self.hear().cached(first) == 192)
        self.ask(second)
        wait_until(lambda: self.hear().cached(second) == 192)
        wanted = {tuple(tokens[:end]) for tokens in (first, second) for end in range(BLOCK, 200, BLOCK)}
        self.assertEqual(self.reader.prefixes(), wanted, "the first 96 tokens are common to both, and told once")
        self.assertEqual(len(self.reader.blocks), 6 + 3)
        for tokens in (first, second):
            self.assertEqual(self.cached(tokens) // BLOCK * BLOCK, self.reader.cached(tokens))
        self.assertEqual(self.reader.cached(prompt(3, 200)), 0)

    def test_what_made_room_is_told_to_be_gone_and_where_it_is_now(self):
        with tempfile.TemporaryDirectory() as folder:
            self.serve("--ctx", "512", "--max-seqs", "2", "--kv-memory", "2M", "--kv-dir", folder, "--kv-disk", "64M")
            prompts = [prompt(n, 300) for n in range(1, 40)]
            for tokens in prompts:
                self.ask(tokens)
            wait_until(lambda: self.hear().cached(prompts[-1]) == 288)
            gone = [tokens for tokens in prompts if self.reader.cached(tokens) == 0]
            self.assertGreater(len(gone), 0)
            for tokens in prompts:
                self.assertEqual(self.cached(tokens) // BLOCK * BLOCK, self.reader.cached(tokens))
            self.assertEqual([self.reader.cached(tokens, "STORAGE") for tokens in gone], [288] * len(gone))
            self.process.terminate()
            self.assertEqual(self.process.wait(), 0)
            wait_until(lambda: not any(self.hear().at.values()))

    def test_whoever_missed_some_hears_the_same_again(self):
        self.serve()
        for n in range(1, 20):
            self.ask(prompt(n, 70))
            self.hear()
        wait_until(lambda: self.hear().cached(prompt(19, 70)) == 64)
        all_of_them = self.missed(0)
        self.assertEqual([number for number, _ in all_of_them], list(range(self.reader.next)))
        again = Reader()
        for number, payload in all_of_them:
            again.take(number, payload)
            self.assertEqual(payload, self.heard.get(number, payload))
        self.assertEqual(again.prefixes(), self.reader.prefixes())
        self.assertGreater(len(self.heard), 1)
        self.assertEqual(self.missed(self.reader.next - 2), all_of_them[-2:])
        self.assertEqual(self.missed(self.reader.next + 1000), [])
        told = json.loads(get(self.url + "/server_info"))["kv_events"]
        self.assertEqual(told["dropped"], 0)
        self.assertEqual(told["batches"], self.reader.next)
        self.assertRegex(get(self.url + "/metrics"), rf"quire_kv_event_batches_total\S* {self.reader.next}\n")

    def test_requests_for_what_was_missed_that_are_none_harm_nobody(self):
        self.serve()
        self.ask(prompt(1, 70))
        socket = self.context.socket(zmq.DEALER)
        socket.connect(self.places["replay_address"])
        for wrong in ([b""], [b"", b""], [b"", b"123"], [b"x", bytes(8)], [b""] * 100, [b"", bytes(9)], [b"", bytes(100000)]):
            socket.send_multipart(wrong)
        wait_until(lambda: self.hear().cached(prompt(1, 70)) == 64)
        self.assertEqual(len(self.missed(0)), self.reader.next)
        self.assertEqual(socket.poll(0), 0)
        socket.close(0)

    def test_of_prompts_that_are_somebodys_own_nobody_hears(self):
        self.serve()
        self.ask(prompt(1, 100), cache_salt="mine")
        self.ask(prompt(2, 100))
        wait_until(lambda: self.hear().cached(prompt(2, 100)) == 96)
        self.assertEqual(len(self.reader.blocks), 3)
        self.assertNotIn(tuple(prompt(1, BLOCK)), self.reader.prefixes())

    def test_an_address_that_others_reach_needs_a_word(self):
        said = subprocess.run([PROGRAM, "serve", "--port", "0", "--kv-events", "tcp://0.0.0.0:*"],
                              capture_output=True, text=True)
        self.assertEqual(said.returncode, 1)
        self.assertIn("--kv-events-anyone", said.stderr)
        said = subprocess.run([PROGRAM, "serve", "--port", "0", "--kv-events-topic", "x"], capture_output=True, text=True)
        self.assertEqual(said.returncode, 2)
        self.assertIn("--kv-events ADDRESS", said.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    options, rest = parser.parse_known_args()
    try:
        import msgpack
        import zmq
        ctypes.CDLL("libzmq.so.5")
    except (ImportError, OSError) as missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    PROGRAM = options.quire
    unittest.main(argv=[sys.argv[0], *rest])
