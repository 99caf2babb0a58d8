#!/usr/bin/env python3
"""Asks `quire serve` for log-probabilities exactly as lm-eval does (`--model local-completions`, with the server's tokenizer), and
compares with `quire perplexity`. lm-eval itself brings 750 MB of packages; it was run by hand (docs/server.md, Clients).

Exits with 1 if something is wrong.

  python3 tests/clients/lmeval_client_test.py --quire build/release/quire
"""
import argparse
import json
import subprocess
import sys
import unittest
import urllib.request

from served import KEY, Served

PROGRAM = ""
TEXT = "Once upon a time there was a cache. It kept what it had computed, page by page, and forgot the oldest."


def parse_logprobs(reply, lengths):
    """What lm-eval makes of a reply: the sum of each continuation, and whether all of it was the likeliest."""
    result = []
    for choice, begin in zip(sorted(reply["choices"], key=lambda choice: choice["index"]), lengths, strict=True):
        tokens = choice["logprobs"]["token_logprobs"][begin:-1]
        tops = choice["logprobs"]["top_logprobs"][begin:-1]
        result.append((sum(tokens), all(token == max(top.values()) for token, top in zip(tokens, tops, strict=True))))
    return result


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served(PROGRAM)

    @classmethod
    def tearDownClass(cls):
        cls.served.close()

    def ask(self, path, body=None):
        request = urllib.request.Request(self.served.url + path, data=None if body is None else json.dumps(body).encode(),
                                         headers={"Authorization": "Bearer " + KEY, "Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    def encode(self, text):
        return self.ask("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def score(self, prompts):
        return self.ask("/v1/completions", {"model": "house", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1,
                                            "seed": 1234, "echo": True})

    def test_the_servers_tokenizer_is_found(self):
        self.assertEqual(self.ask("/tokenizer_info")["eos_token"], "<|end|>")
        self.assertEqual(self.ask("/detokenize", {"tokens": self.encode(TEXT)})["prompt"], TEXT)

    def test_a_text_has_the_sum_of_perplexity_to_the_bit(self):
        told = json.loads(subprocess.run([PROGRAM, "perplexity", "--json", "--per-token", "-"], input=TEXT, text=True,
                                         capture_output=True, check=True).stdout)["nll"]
        # Perplexity begins a text as the tokenizer does.
        tokens = self.ask("/tokenize", {"prompt": TEXT})["tokens"]
        self.assertEqual(len(told), len(tokens) - 1)
        for begin in (1, 7, len(tokens) - 1):
            (total, _), = parse_logprobs(self.score([tokens]), [begin])
            self.assertEqual(total, sum(-value for value in told[begin - 1:]))

    def test_several_continuations_go_together_and_the_likeliest_is_known(self):
        context = self.encode("Once upon a time")
        best = self.ask("/v1/completions", {"model": "house", "prompt": context, "temperature": 0, "max_tokens": 4,
                                            "return_token_ids": True})["choices"][0]["token_ids"]
        other = self.encode(" xylophone")
        alone = [parse_logprobs(self.score([context + more]), [len(context)])[0] for more in (best, other)]
        together = parse_logprobs(self.score([context + best, context + other]), [len(context)] * 2)
        self.assertEqual(together, alone)
        self.assertEqual([greedy for _, greedy in together], [True, False])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.quire
    unittest.main(argv=[sys.argv[0], *rest])
