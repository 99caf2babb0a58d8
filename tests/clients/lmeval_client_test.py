#!/usr/bin/env python3
"""Runs lm-eval itself against `quire serve` (`--model local-completions`, with the server's tokenizer) over tasks of our own, and
compares each log-likelihood with `quire perplexity`. Asks as it does, too, for what its tasks do not show.

lm-eval is installed without most of what it asks for (Makefile): torch and transformers are for models that it runs itself.
Exits with 77 if the package is not there and the rest is right, with 1 if something is wrong.

  python3 tests/clients/lmeval_client_test.py --quire build/release/quire
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from served import KEY, Served

FOLDER = tempfile.TemporaryDirectory()  # for what it keeps of data sets
os.environ |= {"HF_HOME": FOLDER.name, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TQDM_DISABLE": "1"}
try:
    import datasets
    import lm_eval
    import lm_eval.tasks
except ImportError:
    lm_eval = None

TASKS = pathlib.Path(__file__).resolve().parent / "lmeval_tasks"
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


def losses_of(text):
    """Of all tokens but the first, which begins the text as the tokenizer says."""
    told = subprocess.run([PROGRAM, "perplexity", "--json", "--per-token", "-"], input=text, text=True, capture_output=True, check=True)
    return json.loads(told.stdout)["nll"]


class AsLmEval(unittest.TestCase):
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
        told = losses_of(TEXT)
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


@unittest.skipIf(lm_eval is None, "the Python package lm-eval is not installed")
class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        datasets.disable_progress_bars()
        os.chdir(TASKS)  # its tasks name their rows
        cls.served = Served(PROGRAM)
        os.environ["OPENAI_API_KEY"] = KEY
        # The name of the token that begins a text is enough for it, but not here: it takes the id 0, which the house model's has, for none.
        first = subprocess.run([PROGRAM, "tokenize", "-m", "house", ""], capture_output=True, text=True, check=True).stdout
        cls.found = lm_eval.simple_evaluate(
            model="local-completions", tasks=["quire_choices", "quire_texts"],
            task_manager=lm_eval.tasks.TaskManager(include_path=str(TASKS), include_defaults=False),
            model_args={"model": "house", "base_url": cls.served.url + "/v1/completions", "auth_token": KEY,
                        "tokenizer_backend": "remote", "custom_prefix_token_id": int(first), "max_length": 2048, "num_concurrent": 1, "batch_size": 2},
            bootstrap_iters=0)

    @classmethod
    def tearDownClass(cls):
        cls.served.close()
        del os.environ["OPENAI_API_KEY"]

    def told_of(self, task):
        return [(sample["doc"], [said[0] for said in sample["resps"]]) for sample in self.found["samples"][task]]

    def test_whole_texts_have_the_sums_of_perplexity_to_the_bit(self):
        told = self.told_of("quire_texts")
        self.assertEqual(len(told), 2)
        for row, said in told:
            self.assertEqual(said, [sum(-loss for loss in losses_of(row["text"]))])

    def test_ends_of_sentences_have_the_sums_that_the_server_has_for_them(self):
        told = self.told_of("quire_choices")
        self.assertEqual(len(told), 3)
        for row, said in told:
            self.assertEqual(len(said), len(row["ends"]))
            for end, (total, greedy) in zip(row["ends"], said, strict=True):
                self.assertLess(total, 0)
                self.assertIsInstance(greedy, bool)
            self.assertEqual(max(range(2), key=lambda i: said[i][0]), row["right"])
        self.assertEqual(self.found["results"]["quire_choices"]["acc,none"], 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = os.path.abspath(arguments.quire)
    right = unittest.main(argv=[sys.argv[0], *rest], exit=False).result.wasSuccessful()
    if right and lm_eval is None:
        print("skipped: the Python package lm-eval is not installed")
    sys.exit(0 if right and lm_eval else 77 if right else 1)
