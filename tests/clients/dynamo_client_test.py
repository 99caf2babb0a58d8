#!/usr/bin/env python3
"""The worker for Dynamo in tools/, as Dynamo drives it: it is asked for tokens, stopped, and its server dies in the middle of an answer.

Exits with 77 if ai-dynamo is not there, with 1 if something is wrong.

  python3 tests/clients/dynamo_client_test.py --quire build/release/quire
"""
import argparse
import asyncio
import importlib.util
import json
import os
import pathlib
import sys
import unittest

from replicas import Replica, get, post

PROGRAM = ""
PROMPT = [5 + i * 7 % 90 for i in range(150)]


class Context:
    """Of a request, as far as the worker looks at it."""

    def __init__(self):
        self.stopped = False

    def is_stopped(self):
        return self.stopped


def request(tokens, most, **sampling):
    return {"token_ids": tokens, "sampling_options": {"temperature": 1.0, "top_k": -1, "n": 1, "seed": 7, **sampling},
            "stop_conditions": {"max_tokens": most, "ignore_eos": True, "stop_token_ids_hidden": [2]}, "output_options": {"logprobs": None}}


class Worker(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.replicas, self.left = [], []
        for _ in range(2):
            replica = Replica(PROGRAM, "--grace-seconds", "0", "--kv-events", "tcp://127.0.0.1:*")
            self.addCleanup(replica.kill)
            self.replicas.append(replica)
        self.engines = []
        for number, replica in enumerate(self.replicas):
            engine, self.config = await dynamo_worker.QuireEngine.from_args(["--url", replica.url, "--tokenizer", "/nowhere"])
            engine.leave = lambda number=number: self.left.append(number)
            self.registered = await engine.start(number)
            self.addAsyncCleanup(engine.cleanup)
            self.engines.append(engine)

    async def ask(self, engine, request, context=None, until=None):
        """The tokens, and the last thing that was said."""
        tokens, last = [], None
        async for chunk in engine.generate(request, context or Context()):
            tokens += chunk["token_ids"]
            last = chunk
            if until:
                until(tokens)
        return tokens, last

    async def test_registers_what_its_server_says_of_itself(self):
        told = json.loads(get(self.replicas[1].url + "/server_info"))
        self.assertEqual(self.registered.served_model_name, told["served_model_name"])
        self.assertEqual(self.registered.llm.context_length, told["context_length"])
        self.assertEqual(self.registered.llm.kv_cache_block_size, 32)
        sources = await self.engines[1].kv_event_sources()
        self.assertEqual([source.endpoint for source in sources], [told["kv_events"]["address"]])

    async def test_gives_the_tokens_of_the_api(self):
        wanted = post(self.replicas[0].url + "/v1/completions", {"prompt": PROMPT, "max_tokens": 40, "temperature": 1, "seed": 7,
                                                                 "ignore_eos": True, "return_token_ids": True})
        tokens, last = await self.ask(self.engines[0], request(PROMPT, 40))
        self.assertEqual(tokens, wanted["choices"][0]["token_ids"])
        self.assertEqual(last["finish_reason"], "length")
        self.assertEqual(last["completion_usage"]["completion_tokens"], 40)
        self.assertGreater(last["completion_usage"]["prompt_tokens_details"]["cached_tokens"], 100)

    async def test_another_goes_on_with_the_same_tokens_where_one_died(self):
        whole, _ = await self.ask(self.engines[1], request(PROMPT, 400))
        had = []

        def die(tokens):
            had[:] = tokens
            if len(tokens) >= 20:
                self.replicas[0].process.kill()

        with self.assertRaises(EngineShutdown):
            await self.ask(self.engines[0], request(PROMPT, 400), until=die)
        self.assertLess(len(had), 400)
        rest, _ = await self.ask(self.engines[1], request(PROMPT + had, 400 - len(had)))  # as Dynamo's migration does
        self.assertEqual(had + rest, whole)
        with self.assertRaises(CannotConnect):
            await self.ask(self.engines[0], request(PROMPT, 4))
        for _ in range(1200):  # a worker without a server leaves
            if self.left:
                break
            await asyncio.sleep(0.05)
        self.assertEqual(self.left, [0])

    async def test_who_stops_reading_has_ended_it_at_the_server(self):
        context = Context()

        def stop(tokens):
            context.stopped = len(tokens) >= 3

        tokens, last = await self.ask(self.engines[0], request(PROMPT, 3000), context, stop)
        self.assertEqual(last["finish_reason"], "cancelled")
        self.assertLess(len(tokens), 3000)
        for _ in range(400):
            if not json.loads(get(self.replicas[0].url + "/requests"))["running"]:
                break
            await asyncio.sleep(0.05)
        else:
            self.fail("it runs on")

    async def test_what_it_cannot_do_is_said(self):
        for wrong, words in ((request(PROMPT, 4, n=2), "n must be 1"), (request(PROMPT, 4, top_p=7), "top_p"),
                             (request(PROMPT, 4, guided_decoding={"structural_tag": {}}), "structural tags")):
            with self.assertRaisesRegex(InvalidArgument, words):
                await self.ask(self.engines[0], wrong)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    options, rest = parser.parse_known_args()
    if not importlib.util.find_spec("dynamo") or not importlib.util.find_spec("dynamo.common"):
        print("skipped: ai-dynamo from PyPI is not installed")
        sys.exit(77)
    PROGRAM = options.quire
    os.environ["DYN_LOG"] = "error"
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
    import dynamo_worker
    from dynamo.llm.exceptions import CannotConnect, EngineShutdown, InvalidArgument
    unittest.main(argv=[sys.argv[0], *rest])
