#!/usr/bin/env python3
"""Servers that share a store of pages: what one has computed the others take, and whatever becomes of the store, every answer is that of a
server without one.

Exits with 77 if redis-server is not installed, with 1 if something is wrong.

  python3 tests/remote/store_test.py --quire build/release/quire
"""
import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import unittest

from stores import Liar, Redis, Served, bulk, wait_until

PROGRAM = ""
TOKENS = 330  # ten whole pages of 32 and a rest
WHOLE = TOKENS // 32 * 32
KEY_FILE = ""


def prompt(n, tokens=TOKENS):
    """Token ids that begin as no other number's do."""
    return [10 + (n * 7 + i * (n + 3) + i * i % 11) % 90 for i in range(tokens)]


def ask(n, tokens=TOKENS, **more):
    return {"prompt": prompt(n, tokens), "max_tokens": 8, "temperature": 0, "logprobs": 1, "quire": True, "ignore_eos": True, **more}


def said(answer):
    """What must be the same bit by bit: text, tokens, their log-probabilities."""
    choice = answer["choices"][0]
    return choice["text"], choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]


class StoreCase(unittest.TestCase):
    def serve(self, *options, **more):
        server = Served(PROGRAM, *options, **more)
        self.addCleanup(server.close)
        return server

    def redis(self, *options, **more):
        redis = Redis(*options, **more)
        self.addCleanup(redis.close)
        return redis

    def liar(self):
        liar = Liar()
        self.addCleanup(liar.close)
        return liar

    def key_file(self, text="a key of thirty-two bytes or so!"):
        file = tempfile.NamedTemporaryFile("w", suffix=".key", delete=False)
        self.addCleanup(os.remove, file.name)
        with file:
            file.write(text)
        return file.name

    @classmethod
    def setUpClass(cls):
        alone = Served(PROGRAM)
        cls.expected = {n: said(alone.post("/v1/completions", ask(n))) for n in range(6)}
        cls.threads_alone = alone.threads()
        alone.close()

    def complete(self, server, n, **more):
        answer = server.post("/v1/completions", ask(n), **more)
        self.assertEqual(said(answer), self.expected[n])
        return answer["quire"]["cache"]


class Sharing(StoreCase):
    def test_the_second_server_takes_a_prompt_of_many_pages_from_the_store(self):
        redis = self.redis()
        options = ["--kv-remote", redis.url(), "--kv-remote-key-file", self.key_file()]
        one, other = self.serve(*options), self.serve(*options)
        first = self.complete(one, 0)
        self.assertEqual((first["cached_tokens"], first["remote_tokens"]), (0, 0))
        one.wait_until_sent()
        self.assertGreaterEqual(redis.keys(), WHOLE // 32)
        look = other.post("/kv/lookup", {"prompt": prompt(0)})
        self.assertEqual(look["remote_tokens"], 0, "nobody has asked the store yet")
        second = self.complete(other, 0)
        self.assertEqual((second["cached_tokens"], second["remote_tokens"]), (WHOLE, WHOLE))
        self.assertEqual(second["store"], "pages came from the shared store")
        remote = other.remote()
        self.assertEqual(remote["hit_pages"], WHOLE // 32)
        self.assertEqual((remote["missed_pages"], remote["failures"]), (0, 0))
        self.assertTrue(remote["readable"] and remote["writable"])
        metrics = other.get("/metrics")
        self.assertIn(f'quire_remote_prompt_tokens_total{{model_name="house"}} {WHOLE}', metrics)
        self.assertIn('quire_kv_remote_up{model_name="house"} 1', metrics)
        events = other.get("/kv")["events"]["counts"]
        self.assertEqual(events["received"], WHOLE // 32)
        third = self.complete(other, 0)
        self.assertEqual((third["cached_tokens"], third["remote_tokens"]), (TOKENS - 1, 0), "it is in memory now")

    def test_over_tcp_what_an_answer_added_is_found_as_well(self):
        redis = self.redis(tcp=True)
        one, other = (self.serve("--kv-remote", redis.url()) for _ in range(2))
        answer = one.post("/v1/completions", {**ask(1, 300), "max_tokens": 60, "return_token_ids": True})
        one.wait_until_sent()
        turns = prompt(1, 300) + answer["choices"][0]["token_ids"] + [20, 21, 22]
        again = other.post("/v1/completions", {**ask(1), "prompt": turns})
        self.assertEqual(again["quire"]["cache"]["remote_tokens"], 352, "eleven whole pages of 359 tokens")
        self.assertEqual(said(again), said(one.post("/v1/completions", {**ask(1), "prompt": turns})))

    def test_without_a_store_there_are_no_threads_for_one(self):
        redis = self.redis()
        server = self.serve("--kv-remote", redis.url())
        self.complete(server, 0)
        self.assertEqual(server.threads(), self.threads_alone + 2)

    def test_pages_of_another_model_format_or_key_are_not_found(self):
        redis = self.redis()
        key = self.key_file()
        one = self.serve("--kv-remote", redis.url(), "--kv-remote-key-file", key)
        self.complete(one, 0)
        one.wait_until_sent()
        for options in (["--kv", "int8", "--kv-remote-key-file", key], ["--kv-remote-key-file", self.key_file("another key, as long as that")],
                        []):
            other = self.serve("--kv-remote", redis.url(), *options)
            cache = other.post("/v1/completions", ask(0))["quire"]["cache"]
            self.assertEqual((cache["cached_tokens"], cache["store"]), (0, "the shared store had nothing of what was missing"), options)
        same = self.serve("--kv-remote", redis.url(), "--kv-remote-key-file", key)
        self.assertEqual(self.complete(same, 0)["remote_tokens"], WHOLE)

    def test_pages_of_an_api_key_are_found_by_that_key_alone(self):
        redis = self.redis()
        options = ["--kv-remote", redis.url(), "--kv-remote-key-file", self.key_file(), "--api-key", "first", "--api-key", "second"]
        one, other = self.serve(*options), self.serve(*options)
        self.complete(one, 0, key="second")
        one.wait_until_sent("first")
        self.assertEqual(self.complete(other, 0, key="first")["cached_tokens"], 0)
        self.assertEqual(self.complete(other, 0, key="second")["remote_tokens"], WHOLE)
        one.post("/v1/completions", {**ask(1), "cache_salt": "mine"}, key="first")
        one.wait_until_sent("first")
        for salt in (None, "yours"):
            cache = other.post("/v1/completions", {**ask(1), **({"cache_salt": salt} if salt else {})}, key="first")["quire"]["cache"]
            self.assertEqual(cache["cached_tokens"], 0, salt)
        mine = other.post("/v1/completions", {**ask(1), "cache_salt": "mine"}, key="first")
        self.assertEqual(mine["quire"]["cache"]["remote_tokens"], WHOLE)

    def test_without_a_key_file_what_is_somebodys_own_stays_here(self):
        redis = self.redis()
        one = self.serve("--kv-remote", redis.url(), "--api-key", "only")
        self.complete(one, 0, key="only")
        time.sleep(0.3)
        self.assertEqual(redis.keys(), 0)
        self.assertIn("nothing goes there", "".join(one.said))

    def test_what_a_missing_key_means_is_said(self):
        redis = self.redis()
        one = self.serve("--kv-remote", redis.url())
        wait_until(lambda: "can forge pages" in "".join(one.said), "the warning")


class Trouble(StoreCase):
    """What a store does to those who rely on it, while they are busy."""

    def load(self, servers, disturb, seconds=6):
        """Requests to all servers until `disturb` is done and for a while after; how long the longest took."""
        done = threading.Event()
        problems, longest, count = [], [0.0], [0]

        def client(number):
            n = number
            while not done.is_set() and not problems:
                begin = time.monotonic()
                try:
                    answer = servers[number % len(servers)].post("/v1/completions", ask(n % 6))
                    if said(answer) != self.expected[n % 6]:
                        problems.append(f"another answer to {n % 6}")
                except Exception as error:  # whatever it is, a request was lost
                    problems.append(repr(error))
                longest[0] = max(longest[0], time.monotonic() - begin)
                count[0] += 1
                n += 1

        clients = [threading.Thread(target=client, args=(i,)) for i in range(4)]
        for thread in clients:
            thread.start()
        time.sleep(1)
        disturb()
        time.sleep(seconds)
        done.set()
        for thread in clients:
            thread.join()
        self.assertEqual(problems, [])
        self.assertGreater(count[0], 8)
        return longest[0]

    def pair(self, url, *more):
        # Of little memory, so that pages are wanted from the store again and again.
        options = ["--kv-remote", url, "--kv-memory", "4M", "--ctx", "512", *more]
        return [self.serve(*options), self.serve(*options)]

    def test_a_redis_that_is_killed_under_load_loses_no_request_and_is_used_again_when_it_is_back(self):
        redis = self.redis()
        servers = self.pair(redis.url())
        self.load(servers, redis.kill)
        for server in servers:
            remote = server.remote()
            self.assertGreater(remote["failures"], 0)
            self.assertFalse(remote["readable"] and remote["writable"])
        redis.start()
        wait_until(lambda: all(s.remote()["readable"] and s.remote()["writable"] for s in servers), "the return of the store")
        fresh = self.serve("--kv-remote", redis.url())
        self.complete(fresh, 5)
        fresh.wait_until_sent()
        self.assertGreater(redis.keys(), 0)

    def test_a_redis_that_stands_still_under_load_holds_nobody_up_for_long(self):
        redis = self.redis()
        servers = self.pair(redis.url())
        longest = self.load(servers, lambda: redis.signal(signal.SIGSTOP))
        self.assertLess(longest, 20)
        redis.signal(signal.SIGCONT)
        wait_until(lambda: all(s.remote()["readable"] and s.remote()["writable"] for s in servers), "the return of the store")

    def test_a_full_redis_is_counted_and_otherwise_not_noticed(self):
        redis = self.redis("--maxmemory", "2mb", "--maxmemory-policy", "noeviction")
        server = self.serve("--kv-remote", redis.url())
        for n in range(6):
            self.complete(server, n)
        server.wait_until_sent()
        remote = server.remote()
        self.assertGreater(remote["refused_pages"], 0)
        self.assertIn("OOM", remote["problem"])
        self.assertTrue(remote["readable"])
        self.assertEqual(remote["failures"], 0)

    def test_a_redis_that_makes_room_by_itself_is_missed_in_parts_only(self):
        redis = self.redis("--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru")
        one, other = (self.serve("--kv-remote", redis.url()) for _ in range(2))
        for n in range(6):
            self.complete(one, n)
        one.wait_until_sent()
        for n in range(6):
            self.complete(other, n)

    def test_a_wrong_password_is_said_without_the_password(self):
        redis = self.redis("--requirepass", "open sesame".replace(" ", "-"))
        wrong = self.serve("--kv-remote", redis.url("sesamy"))
        self.complete(wrong, 0)
        wait_until(lambda: wrong.remote()["problem"], "the refusal")
        self.assertIn("WRONGPASS", wrong.remote()["problem"])
        self.assertNotIn("sesamy", "".join(wrong.said) + str(wrong.get("/kv")) + str(wrong.get("/server_info")))
        right = self.serve(environment={"QUIRE_KV_REMOTE": redis.url("open-sesame")})
        self.complete(right, 0)
        right.wait_until_sent()
        self.assertTrue(right.remote()["writable"])
        self.assertEqual(self.complete(self.serve("--kv-remote", redis.url("open-sesame")), 0)["remote_tokens"], WHOLE)

    def test_nobody_at_the_address_is_said_at_the_start_and_costs_nothing(self):
        server = self.serve("--kv-remote", "redis+unix:///nowhere/at/all")
        self.complete(server, 0)
        wait_until(lambda: "tried again later" in "".join(server.said), "the word")


class Lies(StoreCase):
    """A store that says what is not so: no answer changes, and no server is harmed."""

    def filled(self):
        liar = self.liar()
        one = self.serve("--kv-remote", liar.url())
        for n in range(2):
            self.complete(one, n)
        one.wait_until_sent()
        self.assertGreaterEqual(len(liar.values), 2 * (WHOLE // 32))
        return liar

    def check(self, liar, lie, least_asked=1):
        liar.lie = lie
        liar.asked = 0
        other = self.serve("--kv-remote", liar.url())
        cache = [self.complete(other, n) for n in range(2)]
        self.assertGreaterEqual(liar.asked, least_asked)
        return other, cache

    def test_values_that_are_not_what_they_should_be_are_not_used(self):
        liar = self.filled()
        values = list(liar.values.values())

        def of_values(change):
            def lie(words, reply):
                value = liar.values.get(words[1]) if words[0] == b"GET" else None
                return reply if value is None else bulk(change(value))
            return lie

        def flipped(at):
            return lambda value: value[:at % len(value)] + bytes([value[at % len(value)] ^ 1]) + value[at % len(value) + 1:]

        cases = {"length": [lambda v: v[:-1], lambda v: v[:100], lambda v: b"", lambda v: v + b"x"],
                 "tag": [flipped(-1), flipped(5000), flipped(-40)],
                 "foreign": [flipped(0), flipped(20), lambda v: bytes(len(v))],
                 "tokens": [flipped(60), flipped(130), lambda v: values[3] if v != values[3] else values[4]]}
        for fault, changes in cases.items():
            for change in changes:
                other, cache = self.check(liar, of_values(change))
                self.assertEqual([c["remote_tokens"] for c in cache], [0, 0])
                self.assertEqual(cache[0]["store"], "a page of the shared store was not what it should be, and was computed instead")
                self.assertGreater(other.remote()["faults"][fault], 0, other.remote())
                self.assertTrue(other.remote()["readable"], "it is the pages that are wrong")

    def test_one_wrong_page_in_the_middle_costs_what_comes_after_it(self):
        liar = self.filled()
        count = [0]

        def lie(words, reply):
            if words[0] != b"GET":
                return reply
            count[0] += 1
            return reply[:300] + b"?" + reply[301:] if count[0] == 5 else reply

        _, cache = self.check(liar, lie)
        self.assertEqual(cache[0]["remote_tokens"], 4 * 32)

    def test_who_does_not_speak_as_redis_does_is_not_listened_to(self):
        liar = self.filled()
        for reply in (b"\x00\x01\x02 garbage\r\n", b"*3\r\n:1\r\n:2\r\n:3\r\n", b"*1000000000\r\n", b"*-1\r\n", b"$99999999999999999999\r\n",
                      b"$4611686018427387904\r\nx", b":notanumber\r\n", b"%2\r\n+a\r\n:1\r\n", b"_\r\n", b"+OK\r\n+OK\r\n", b"-LOADING it\r\n",
                      b"HTTP/1.1 400 Bad Request\r\n\r\n", b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", b":2\r\n", b":-1\r\n"):
            other, cache = self.check(liar, lambda words, _, reply=reply: reply)
            self.assertEqual(cache[0]["remote_tokens"], 0, reply)
            self.assertGreater(other.remote()["failures"], 0, reply)

    def test_who_sends_without_end_is_hung_up_on(self):
        liar = self.filled()

        def lie(words, reply):
            return b"$400000000\r\n" + bytes(64 << 20) if words[0] == b"GET" else reply

        other, _ = self.check(liar, lie)
        self.assertIn("more than it was asked for", other.remote()["problem"])

    def test_who_answers_slowly_or_byte_by_byte_is_not_waited_for(self):
        liar = self.filled()

        def slow(words, reply):
            time.sleep(1.5)
            return reply

        begin = time.monotonic()
        other, cache = self.check(liar, slow)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(cache[0]["remote_tokens"], 0)
        wait_until(lambda: other.remote()["failures"] > 0, "a failure")

    def test_who_says_yes_to_everything_and_has_nothing(self):
        liar = self.filled()
        liar.values.clear()

        def lie(words, reply):
            return b":1\r\n" if words[0] == b"EXISTS" else reply

        other, cache = self.check(liar, lie)
        self.assertEqual(cache[0]["remote_tokens"], 0)
        self.assertGreater(other.remote()["missed_pages"], 0)


class Flags(StoreCase):
    def refusal(self, *options):
        with self.assertRaises(RuntimeError) as raised:
            Served(PROGRAM, *options)
        return str(raised.exception)

    def test_what_cannot_be_is_refused_in_a_sentence(self):
        self.assertIn("redis+unix:///PATH", self.refusal("--kv-remote", "http://here"))
        self.assertIn("stunnel", self.refusal("--kv-remote", "rediss://here"))
        self.assertIn("need --kv-remote", self.refusal("--kv-remote-key-file", "/dev/null"))
        self.assertIn("too few bytes", self.refusal("--kv-remote", "redis://127.0.0.1:1", "--kv-remote-key-file", self.key_file("short")))
        self.assertIn("cannot open", self.refusal("--kv-remote", "redis://127.0.0.1:1", "--kv-remote-key-file", "/nowhere"))
        self.assertIn("without the cache", self.refusal("--kv-remote", "redis://127.0.0.1:1", "--no-kv-cache"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quire", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.quire
    if shutil.which("redis-server") is None:
        print("redis-server is not installed")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest])
