#!/usr/bin/env python3
"""Uses `quire serve` through the package litellm, by the APIs of OpenAI's, Anthropic's and Ollama's that it speaks.

Exits with 77 if the package is not there, with 1 if something is wrong.

  python3 tests/clients/litellm_client_test.py --quire build/release/quire
"""
import argparse
import json
import os
import sys
import unittest

from served import KEY, Served

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the network what models cost
try:
    import litellm
    import pydantic
except ImportError:
    print("skipped: the Python package litellm is not installed")
    sys.exit(77)

PROGRAM = ""
WORDS = [{"role": "user", "content": "What is a KV cache?"}]
CLOCK = {"type": "function", "function": {
    "name": "clock", "description": "Tells the time.",
    "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"],
                   "maxProperties": 1}}}  # it takes additionalProperties out, and the house model would go on with more for ever


class Verdict(pydantic.BaseModel):
    good: bool


class LiteLlm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        litellm.telemetry = False
        cls.served = Served(PROGRAM, "--pooling", "mean")
        cls.routes = {"openai/house": cls.served.url + "/v1", "hosted_vllm/house": cls.served.url + "/v1",
                      "anthropic/house": cls.served.url, "ollama_chat/house": cls.served.url}

    @classmethod
    def tearDownClass(cls):
        cls.served.close()

    def ask(self, model, **options):
        options = {"messages": WORDS, "temperature": 0, "max_tokens": 400, **options}
        return litellm.completion(model=model, api_base=self.routes[model], api_key=KEY, num_retries=0, **options)

    def test_an_answer_is_the_same_by_every_route_whole_and_as_a_stream(self):
        expected = self.ask("openai/house").choices[0].message.content
        self.assertIn("KV cache", expected)
        for model in self.routes:
            with self.subTest(model):
                whole = self.ask(model)
                self.assertEqual(whole.choices[0].message.content, expected)
                self.assertGreater(whole.usage.completion_tokens, 0)
                parts = [chunk.choices[0].delta.content or "" for chunk in self.ask(model, stream=True)]
                self.assertEqual("".join(parts), expected)
                self.assertGreater(len(parts), 1)

    def test_a_call_can_be_forced_and_its_result_goes_back_in(self):
        for model in ("openai/house", "hosted_vllm/house"):  # to Anthropic's it sends no schema that ends
            with self.subTest(model):
                choice = {"type": "function", "function": {"name": "clock"}}
                message = self.ask(model, tools=[CLOCK], tool_choice=choice).choices[0].message
                call = message.tool_calls[0]
                self.assertEqual(call.function.name, "clock")
                self.assertIn(json.loads(call.function.arguments)["zone"], ("UTC", "CET"))
                streamed = litellm.stream_chunk_builder(list(self.ask(model, tools=[CLOCK], tool_choice=choice, stream=True)))
                self.assertEqual(streamed.choices[0].message.tool_calls[0].function.arguments, call.function.arguments)
                history = [*WORDS, message.model_dump(exclude_none=True),
                           {"role": "tool", "tool_call_id": call.id, "content": "noon"}]
                self.assertTrue(self.ask(model, messages=history, tools=[CLOCK]).choices[0].message.role)

    def test_an_answer_keeps_to_a_schema(self):
        for model in ("openai/house", "hosted_vllm/house", "ollama_chat/house"):
            with self.subTest(model):
                text = self.ask(model, response_format=Verdict).choices[0].message.content
                self.assertIsInstance(Verdict.model_validate_json(text).good, bool)

    def test_texts_become_vectors_and_are_ranked(self):
        texts = ["a page of keys", "the cat sat"]
        made = {model: litellm.embedding(model=model, input=texts, api_base=base, api_key=KEY)
                for model, base in (("openai/house", self.served.url + "/v1"), ("hosted_vllm/house", self.served.url + "/v1"))}
        for reply in made.values():
            self.assertEqual(len(reply.data), 2)
            self.assertAlmostEqual(sum(x * x for x in reply.data[1]["embedding"]), 1, places=5)
        ranked = litellm.rerank(model="hosted_vllm/house", query="the cat sat", documents=texts, top_n=1,
                                api_base=self.served.url, api_key=KEY)
        self.assertEqual([result["index"] for result in ranked.results], [1])
        self.assertAlmostEqual(ranked.results[0]["relevance_score"], 1, places=5)

    def test_what_is_wrong_is_said(self):
        with self.assertRaises(litellm.NotFoundError):
            litellm.completion(model="openai/gpt-5", api_base=self.served.url + "/v1", api_key=KEY, messages=WORDS, num_retries=0)
        with self.assertRaises(litellm.AuthenticationError):
            litellm.completion(model="openai/house", api_base=self.served.url + "/v1", api_key="wrong", messages=WORDS, num_retries=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.quire
    unittest.main(argv=[sys.argv[0], *rest])
