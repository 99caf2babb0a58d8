#!/usr/bin/env python3
"""Uses `quire serve` through the package instructor: answers as objects, by calls and by schemas.

Exits with 77 if the package is not there, with 1 if something is wrong.

  python3 tests/clients/instructor_client_test.py --quire build/release/quire
"""
import argparse
import sys
import unittest
from typing import Literal

from served import KEY, Served

try:
    import instructor
    import openai
    import pydantic
except ImportError:
    print("skipped: the Python package instructor is not installed")
    sys.exit(77)

PROGRAM = ""


class Verdict(pydantic.BaseModel):
    good: bool
    colour: Literal["red", "green"]


class Instructor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served(PROGRAM)
        cls.client = openai.OpenAI(base_url=cls.served.url + "/v1", api_key=KEY, max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.served.close()

    def options(self, words="Is it good?"):
        return {"model": "house", "temperature": 0, "max_tokens": 400, "max_retries": 0,
                "messages": [{"role": "user", "content": words}]}

    def each_client(self):
        for mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"):
            with self.subTest(mode):
                yield instructor.from_openai(self.client, mode=instructor.Mode[mode])

    def test_an_answer_is_what_was_asked_for(self):
        for client in self.each_client():
            verdict = client.chat.completions.create(response_model=Verdict, **self.options())
            self.assertIsInstance(verdict, Verdict)

    def test_it_grows_as_it_comes(self):
        for client in self.each_client():
            whole = client.chat.completions.create(response_model=Verdict, **self.options())
            parts = list(client.chat.completions.create_partial(response_model=Verdict, **self.options()))
            self.assertEqual((parts[-1].good, parts[-1].colour), (whole.good, whole.colour))

    def test_a_plain_answer_is_a_text(self):
        for client in self.each_client():
            answer = client.chat.completions.create(response_model=None, **self.options("What is a KV cache?"))
            self.assertIn("KV cache", answer.choices[0].message.content)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.quire
    unittest.main(argv=[sys.argv[0], *rest])
