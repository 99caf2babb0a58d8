#!/usr/bin/env python3
"""Uses `quire serve` through the official ollama package, as its users do.

Exits with 77 if the package is not there, with 1 if something is wrong.

  python3 tests/clients/ollama_client_test.py --quire build/release/quire
"""
import argparse
import json
import sys
import unittest
import urllib.request

from served import KEY, Served

try:
    import ollama
except ImportError:
    print("skipped: the Python package ollama is not installed")
    sys.exit(77)

PROGRAM = ""
OPTIONS = {"temperature": 0, "num_predict": 24}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "Tells the time.",
                                          "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}}


class Ollama(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served(PROGRAM)
        cls.client = ollama.Client(host=cls.served.url, headers={"Authorization": "Bearer " + KEY})

    @classmethod
    def tearDownClass(cls):
        cls.served.close()

    def chat(self, words="What is a KV cache?", **options):
        options = {"model": "house", "options": OPTIONS, **options}
        options.setdefault("messages", [{"role": "user", "content": words}])
        return self.client.chat(**options)

    def test_models_are_listed_and_shown(self):
        self.assertEqual([model.model for model in self.client.list().models], ["house"])
        shown = self.client.show("house:latest")
        self.assertIn("completion", shown.capabilities)
        self.assertIn("tools", shown.capabilities)
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.show("llama3")
        self.assertEqual(caught.exception.status_code, 404)

    def test_its_version_is_new_enough(self):
        request = urllib.request.Request(self.served.url + "/api/version", headers={"Authorization": "Bearer " + KEY})
        with urllib.request.urlopen(request) as reply:
            version = json.load(reply)["version"]
        self.assertGreaterEqual(tuple(map(int, version.split("."))), (0, 6, 4))

    def test_a_chat_is_the_same_whole_and_as_a_stream(self):
        whole = self.chat()
        self.assertTrue(whole.done)
        self.assertIn("KV cache", whole.message.content)
        self.assertGreater(whole.eval_count, 0)
        parts = list(self.chat(stream=True))
        self.assertEqual("".join(part.message.content for part in parts), whole.message.content)
        self.assertEqual([part.done for part in parts], [False] * (len(parts) - 1) + [True])
        self.assertEqual(parts[-1].done_reason, whole.done_reason)

    def test_a_prompt_is_answered_or_continued(self):
        answer = self.client.generate(model="house", prompt="What is a KV cache?", options=OPTIONS)
        self.assertEqual(answer.response, self.chat().message.content)
        raw = self.client.generate(model="house", prompt="Once upon a time", raw=True, options=OPTIONS)
        self.assertTrue(raw.response)

    def test_calls_and_results_go_back_in(self):
        answer = self.chat(tools=[CLOCK], messages=[
            {"role": "user", "content": "What time is it?"},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "clock", "arguments": {}}}]},
            {"role": "tool", "tool_name": "clock", "content": "noon"}])
        self.assertEqual(answer.message.role, "assistant")

    def test_an_answer_keeps_to_a_schema(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
                  "additionalProperties": False}
        self.assertIn(json.loads(self.chat(format=schema).message.content)["n"], range(10))

    def test_texts_become_vectors(self):
        texts = ["a page of keys", "the cat sat on the mat"]
        both = self.client.embed(model="house", input=texts).embeddings
        self.assertEqual(len(both), 2)
        self.assertAlmostEqual(sum(x * x for x in both[0]), 1, places=5)
        self.assertEqual(list(self.client.embed(model="house", input=texts[1]).embeddings[0]), list(both[1]))
        self.assertEqual(list(self.client.embeddings(model="house", prompt=texts[1]).embedding), list(both[1]))

    def test_what_is_wrong_is_said(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            self.chat(format={"type": "array", "uniqueItems": True})
        self.assertEqual(caught.exception.status_code, 400)
        self.assertIn("format", caught.exception.error)
        with self.assertRaises(ollama.ResponseError) as caught:
            ollama.Client(host=self.served.url).list()
        self.assertEqual(caught.exception.status_code, 401)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.quire
    unittest.main(argv=[sys.argv[0], *rest])
