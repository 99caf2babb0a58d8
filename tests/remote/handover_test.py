#!/usr/bin/env python3
"""Prompts are computed by one server and answers by another, behind a proxy that knows vLLM's way of saying so.

Exits with 77 if redis-server is not installed, with 1 if something is wrong.

  python3 tests/remote/handover_test.py --quire build/release/quire
"""
import argparse
import json
import shutil
import sys
import threading
import unittest
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stores import Redis, Served

PROGRAM = ""
TOKENS = 330
WHOLE = TOKENS // 32 * 32


def prompt(n):
    return [10 + (n * 7 + i * (n + 3) + i * i % 11) % 90 for i in range(TOKENS)]


def ask(n, **more):
    return {"prompt": prompt(n), "max_tokens": 8, "temperature": 0, "logprobs": 1, "quire": True, "ignore_eos": True, **more}


def said(answer):
    choice = answer["choices"][0]
    return choice["text"], choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]


class Proxy:
    """The first server computes the prompt and says one token, which nobody sees; the second gets what it said of the transfer."""

    def __init__(self, prefill, decode):
        self.prefill, self.decode = prefill, decode
        self.transfers = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                reply = proxy.answer(self.path, body)
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, path, body):
        first = {**body, "max_tokens": 1, "stream": False,
                 "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
                                        "remote_block_ids": None, "remote_host": None, "remote_port": None}}
        if "max_completion_tokens" in first:
            first["max_completion_tokens"] = 1
        try:
            transfer = json.loads(post(self.prefill() + path, first)).get("kv_transfer_params")
        except OSError:  # it has died: the other computes all
            transfer = None
        self.transfers.append(transfer)
        return post(self.decode() + path, {**body, "kv_transfer_params": transfer} if transfer else body)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def post(url, body):
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}),
                                timeout=120) as reply:
        return reply.read()


class HandOver(unittest.TestCase):
    def setUp(self):
        self.redis = Redis()
        self.addCleanup(self.redis.close)
        self.prefill, self.decode = self.serve(), self.serve()
        self.proxy = Proxy(lambda: self.prefill.url, lambda: self.decode.url)
        self.addCleanup(self.proxy.close)

    def serve(self):
        server = Served(PROGRAM, "--kv-remote", self.redis.url())
        self.addCleanup(lambda: server.process.poll() is None and server.close())
        return server

    @classmethod
    def setUpClass(cls):
        alone = Served(PROGRAM)
        cls.expected = [said(alone.post("/v1/completions", ask(n))) for n in range(3)]
        cls.chat = {"messages": [{"role": "user", "content": "Count the words of this. " * 40}], "max_tokens": 6, "temperature": 0,
                    "quire": True}
        cls.chat_expected = alone.post("/v1/chat/completions", cls.chat)["choices"][0]["message"]["content"]
        alone.close()

    def through(self, body, path="/v1/completions"):
        return json.loads(post(self.proxy.url + path, body))

    def test_what_one_has_computed_the_other_goes_on_with(self):
        for n in range(3):
            answer = self.through(ask(n))
            self.assertEqual(said(answer), self.expected[n])
            self.assertEqual(answer["quire"]["cache"]["remote_tokens"], WHOLE)
        transfer = self.proxy.transfers[0]
        self.assertEqual((transfer["do_remote_prefill"], transfer["do_remote_decode"], transfer["remote_tokens"]), (True, False, WHOLE))
        self.assertNotIn("kv_transfer_params", answer)

    def test_chats_go_the_same_way(self):
        answer = self.through(self.chat, "/v1/chat/completions")
        self.assertEqual(answer["choices"][0]["message"]["content"], self.chat_expected)
        self.assertGreaterEqual(answer["quire"]["cache"]["remote_tokens"], 32)

    def test_a_first_server_that_died_is_not_missed(self):
        self.through(ask(0))
        self.prefill.process.kill()
        self.prefill.process.wait()
        self.assertEqual(said(self.through(ask(1))), self.expected[1])
        self.assertIsNone(self.proxy.transfers[-1])

    def test_one_that_dies_after_its_ticket_or_a_store_that_does_is_not_missed(self):
        first = self.prefill.post("/v1/completions", {**ask(0, kv_transfer_params={"do_remote_decode": True}), "max_tokens": 1})
        transfer = first["kv_transfer_params"]
        self.prefill.process.kill()
        self.prefill.process.wait()
        answer = self.decode.post("/v1/completions", ask(0, kv_transfer_params=transfer))
        self.assertEqual(said(answer), self.expected[0])
        self.assertEqual(answer["quire"]["cache"]["remote_tokens"], WHOLE, "what it had sent is there")
        self.redis.kill()
        other = self.serve()
        answer = other.post("/v1/completions", ask(0, kv_transfer_params=transfer))
        self.assertEqual(said(answer), self.expected[0])
        self.assertEqual(answer["quire"]["cache"]["remote_tokens"], 0)

    def test_a_ticket_that_is_unknown_or_hostile_changes_nothing(self):
        good = self.prefill.post("/v1/completions", {**ask(0, kv_transfer_params={"do_remote_decode": True}), "max_tokens": 1})
        ticket = good["kv_transfer_params"]["ticket"]
        tokens, tag = ticket.split(":")[1:]
        self.redis.say("FLUSHALL")
        for wrong in (ticket, "", "1:320:" + "0" * 64, f"1:4294967295:{tag}", f"1:999999999999999999:{tag}", f"1:-1:{tag}", f"1:{tokens}:{tag[:-2]}",
                      f"2:{tokens}:{tag}", "x" * 100_000, "1:320:" + "\u0000" * 64, 7, None, [], {"a": 1}, f"1:31:{tag}", f"1:32:{tag}"):
            transfer = {"do_remote_prefill": True, "do_remote_decode": False, "ticket": wrong}
            answer = self.decode.post("/v1/completions", {**ask(0, kv_transfer_params=transfer), "cache_salt": f"each alone {wrong}"[:99]})
            self.assertEqual(said(answer), self.expected[0], wrong)
        answer = self.decode.post("/v1/completions", ask(0, kv_transfer_params={"do_remote_prefill": True, "ticket": ticket}))
        self.assertEqual(said(answer), self.expected[0])
        self.assertEqual(answer["quire"]["cache"]["remote_tokens"], 0, "its pages have gone")
        answer = self.decode.post("/v1/completions", ask(1, kv_transfer_params={"do_remote_prefill": True, "ticket": ticket}))
        self.assertEqual(said(answer), self.expected[1], "a ticket of another prompt")

    def test_what_makes_no_sense_is_refused(self):
        for body, word in ((ask(0, kv_transfer_params={"do_remote_decode": True}, stream=True), "streams"),
                           ({**ask(0, kv_transfer_params={"do_remote_decode": True}), "n": 2}, "one answer"),
                           (ask(0, kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": True}), "one at most"),
                           (ask(0, kv_transfer_params={"do_remote_decode": "yes"}), "do_remote_decode"),
                           (ask(0, kv_transfer_params=[1]), "kv_transfer_params"),
                           ({**ask(0, kv_transfer_params={"do_remote_decode": True}), "prompt": ["a", "b"]}, "one prompt")):
            self.assertIn(word, str(self.prefill.post("/v1/completions", body, status=400)))

    def test_a_server_without_a_store_answers_and_hands_nothing_over(self):
        alone = Served(PROGRAM)
        self.addCleanup(alone.close)
        answer = alone.post("/v1/completions", ask(0, kv_transfer_params={"do_remote_decode": True}))
        self.assertEqual(said(answer), self.expected[0])
        self.assertIsNone(answer["kv_transfer_params"])
        answer = alone.post("/v1/completions", ask(0, kv_transfer_params={"do_remote_prefill": True, "ticket": "1:32:" + "0" * 64}))
        self.assertEqual(said(answer), self.expected[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quire", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.quire
    if shutil.which("redis-server") is None:
        print("redis-server is not installed")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest])
