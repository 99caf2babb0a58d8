#!/usr/bin/env python3
"""Uses `quire serve` through the package langchain-openai.

Exits with 77 if the package is not there, with 1 if something is wrong.

  python3 tests/clients/langchain_client_test.py --quire build/release/quire
"""
import argparse
import sys
import unittest
from typing import Literal

from served import KEY, Served

try:
    import langchain_openai
    import pydantic
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
except ImportError:
    print("skipped: the Python package langchain-openai is not installed")
    sys.exit(77)

PROGRAM = ""
WORDS = "What is a KV cache?"


class Verdict(pydantic.BaseModel):
    """Whether it is good."""
    good: bool


@tool
def clock(zone: Literal["UTC", "CET"]) -> str:
    """Tells the time."""
    return "noon in " + zone


class LangChain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served(PROGRAM, "--pooling", "mean")
        cls.access = {"model": "house", "base_url": cls.served.url + "/v1", "api_key": KEY, "max_retries": 0}

    @classmethod
    def tearDownClass(cls):
        cls.served.close()

    def each_model(self):
        for responses in (False, True):
            with self.subTest("responses" if responses else "chat"):
                yield langchain_openai.ChatOpenAI(temperature=0, max_tokens=400, use_responses_api=responses, **self.access)

    def test_an_answer_is_the_same_whole_and_as_a_stream(self):
        for model in self.each_model():
            whole = model.invoke(WORDS)
            self.assertIn("KV cache", whole.text)
            self.assertGreater(whole.usage_metadata["output_tokens"], 0)
            parts = list(model.stream(WORDS))
            self.assertEqual("".join(part.text for part in parts), whole.text)
            self.assertGreater(len(parts), 1)

    def test_a_tool_is_called_and_its_result_goes_back_in(self):
        for model in self.each_model():
            # Else the schema is open, and the house model never stops to think of more properties.
            forced = model.bind_tools([clock], tool_choice="clock", strict=True)
            message = forced.invoke(WORDS)
            self.assertEqual([call["name"] for call in message.tool_calls], ["clock"])
            result = clock.invoke(message.tool_calls[0])
            self.assertIsInstance(result, ToolMessage)
            self.assertIn(result.content, ("noon in UTC", "noon in CET"))
            answer = model.bind_tools([clock]).invoke([HumanMessage(WORDS), message, result])
            self.assertEqual(answer.type, "ai")
            streamed = None
            for part in forced.stream(WORDS):
                streamed = part if streamed is None else streamed + part
            self.assertEqual(streamed.tool_calls[0]["args"], message.tool_calls[0]["args"])

    def test_an_answer_is_what_was_asked_for(self):
        for model in self.each_model():
            for method in ("json_schema", "function_calling"):
                with self.subTest(method):
                    self.assertIsInstance(model.with_structured_output(Verdict, method=method).invoke("Is it good?"), Verdict)

    def test_a_prompt_is_continued(self):
        model = langchain_openai.OpenAI(temperature=0, max_tokens=16, **self.access)
        self.assertTrue(model.invoke("Once upon a time"))

    def test_texts_become_vectors(self):
        # Without this it would send the ids of OpenAI's tokens.
        vectors = langchain_openai.OpenAIEmbeddings(check_embedding_ctx_length=False, **self.access)
        made = vectors.embed_documents(["a page of keys", "the cat sat"])
        self.assertEqual(len(made), 2)
        query = vectors.embed_query("the cat sat")
        self.assertAlmostEqual(sum(a * b for a, b in zip(query, made[1])), 1, places=5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.quire
    unittest.main(argv=[sys.argv[0], *rest])
