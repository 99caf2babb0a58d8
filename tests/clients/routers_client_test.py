#!/usr/bin/env python3
"""Two servers behind routers that other people wrote: SGLang's gateway (smg), and what Dynamo chooses replicas with.

Exits with 77 if one of them is not there, with 1 if something is wrong.

  python3 tests/clients/routers_client_test.py --quire build/release/quire
"""
import argparse
import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import unittest

from replicas import Replica, free_port, get, post, status, wait_until

PROGRAM = ""
BLOCK = 32
EVENTS = ("--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*")
MODEL = "house"


def prompt(n, tokens):
    """Token ids that begin as no other number's do."""
    return [10 + (n * 7 + i * (n + 3)) % 90 for i in range(tokens)]


def complete(url, tokens, **more):
    return post(url + "/v1/completions", {"model": MODEL, "prompt": tokens, "max_tokens": 1, "temperature": 0, **more})


def whole_blocks(tokens):
    return tokens // BLOCK * BLOCK


class TwoReplicas(unittest.TestCase):
    def serve(self, *options):
        replicas = [Replica(PROGRAM, "--grace-seconds", "0", *options) for _ in range(2)]
        for replica in replicas:
            self.addCleanup(replica.kill)
        return replicas

    def start(self, *command):
        """A router's program, which says much that nobody reads."""
        environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:1"}  # smg looks for the model's tokenizer, and does without
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process


class DynamosRouter(TwoReplicas):
    """What Dynamo's KV router chooses by, in this process: its index of both servers' events, and its choice."""

    async def hear(self, replicas):
        from dynamo.llm import SelectionService
        service = SelectionService(indexer_threads=1)
        self.addCleanup(service.shutdown)
        for number, replica in enumerate(replicas):
            places = replica.events()
            told = await service.upsert_worker({
                "worker_id": number, "model_name": MODEL, "block_size": BLOCK, "endpoint": replica.url,
                "kv_events_endpoints": {0: places["address"]}, "replay_endpoint": places["replay_address"]})
            self.assertEqual(told["lifecycle"], "schedulable", told)
        return service

    async def found(self, service, tokens, where="device_blocks"):
        """How many tokens it thinks each of the two has."""
        scores = await service.overlap_scores({"model_name": MODEL, "token_ids": tokens})
        found = {worker["worker_id"]: worker[where] * BLOCK for worker in scores["workers"]}
        return [found[0], found[1]]

    async def say_what_lookup_says(self, replicas):
        prompts = [prompt(n, 100 + 8 * n) for n in range(1, 25)]
        early, late = prompts[:3], prompts[3:]
        for tokens in early:
            complete(replicas[0].url, tokens)
        service = await self.hear(replicas)
        for n, tokens in enumerate(late):
            complete(replicas[n % 2].url, tokens)
            if n % 3 == 0:
                complete(replicas[1 - n % 2].url, tokens[:70] + prompt(50 + n, 70))
        looked_up = {n: [whole_blocks(replica.cached(tokens)) for replica in replicas] for n, tokens in enumerate(prompts)}
        for _ in range(400):  # events are on their way for a moment
            found = {n: await self.found(service, tokens) for n, tokens in enumerate(prompts)}
            if found == looked_up:
                break
            await asyncio.sleep(0.05)
        self.assertEqual(found, looked_up)
        cached = [sum(each) for each in looked_up.values()]
        self.assertGreater(sum(cached), 0)
        self.assertIn(0, cached, "memory is small: some had to go, and the index knows")

    def test_knows_what_lookup_knows_also_of_what_was_stored_before_it_came_and_of_what_went(self):
        asyncio.run(self.say_what_lookup_says(self.serve(*EVENTS, "--ctx", "512", "--max-seqs", "2", "--kv-memory", "2M")))

    async def choose(self, replicas):
        service = await self.hear(replicas)
        prompts = [prompt(n, 200) for n in range(1, 9)]
        for n, tokens in enumerate(prompts):
            complete(replicas[n % 2].url, tokens)
        for n, tokens in enumerate(prompts):
            for _ in range(400):
                chosen = await service.select({"model_name": MODEL, "token_ids": tokens})
                if chosen["overlap"]["longest_matched"]:
                    break
                await asyncio.sleep(0.05)
            self.assertEqual(chosen["endpoint"], replicas[n % 2].url)
            self.assertEqual(chosen["overlap"]["longest_matched"], whole_blocks(replicas[n % 2].cached(tokens)))

    def test_sends_a_prompt_where_most_of_it_is(self):
        asyncio.run(self.choose(self.serve(*EVENTS)))


class SglangsGateway(TwoReplicas):
    """`smg`, which chooses by what it has sent where."""

    def route(self, replicas, policy):
        port = free_port()
        self.start(shutil.which("smg"), "launch", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()),
                   "--policy", policy, "--health-check-interval-secs", "1", "--worker-urls", *(replica.url for replica in replicas))
        url = f"http://127.0.0.1:{port}"

        def knows_both():
            return status(url + "/health") == 200 and sum(w["is_healthy"] for w in json.loads(get(url + "/workers"))["workers"]) == 2

        wait_until(knows_both)
        return url

    def talk(self, url, n):
        """A conversation's answers, and the share of its prompts that was cached."""
        messages, answers, cached, asked = [], [], 0, 0
        for turn in range(4):
            messages.append({"role": "user", "content": f"Tell me of animal number {n}, part {turn}. " + "And more of it. " * 8})
            reply = post(url + "/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 24, "temperature": 0})
            answers.append(reply["choices"][0]["message"]["content"])
            messages.append({"role": "assistant", "content": answers[-1]})
            cached += reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            asked += reply["usage"]["prompt_tokens"]
        return answers, cached / asked

    def test_answers_are_the_same_and_a_conversation_stays_where_it_is_cached(self):
        alone = Replica(PROGRAM, "--grace-seconds", "0")
        self.addCleanup(alone.kill)
        talks = [self.talk(alone.url, n) for n in range(6)]
        url = self.route(self.serve(), "cache_aware")
        routed = [self.talk(url, n) for n in range(6)]
        self.assertEqual([answers for answers, _ in routed], [answers for answers, _ in talks])
        share = sum(cached for _, cached in routed)
        self.assertGreater(share, 0.8 * sum(cached for _, cached in talks))

    def test_a_replica_that_was_killed_is_asked_no_more_and_no_answer_is_missing(self):
        replicas = self.serve()
        url = self.route(replicas, "round_robin")

        def answers(url):
            for n in range(12):
                yield complete(url, f"Once upon a time there were {n} foxes", max_tokens=8)["choices"][0]["text"]  # it reads texts only

        wanted = list(answers(replicas[0].url))
        for n, text in enumerate(answers(url)):
            self.assertEqual(text, wanted[n])
            if n == 4:
                replicas[1].process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    options, rest = parser.parse_known_args()
    missing = [name for name, there in (("ai-dynamo-runtime", importlib.util.find_spec("dynamo")), ("smg", shutil.which("smg"))) if not there]
    if missing:
        print(f"skipped: {' and '.join(missing)} from PyPI is not installed")
        sys.exit(77)
    PROGRAM = options.quire
    os.environ["DYN_LOG"] = "error"
    unittest.main(argv=[sys.argv[0], *rest])
