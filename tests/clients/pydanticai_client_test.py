#!/usr/bin/env python3
"""Uses `quire serve` through the package pydantic-ai, by chat completions and by Responses.

Exits with 77 if the package is not there, with 1 if something is wrong.

  python3 tests/clients/pydanticai_client_test.py --quire build/release/quire
"""
import argparse
import sys
import unittest

from served import KEY, Served

try:
    import openai
    import pydantic
    import pydantic_ai
    from pydantic_ai import messages
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
except ImportError:
    print("skipped: the Python package pydantic-ai is not installed")
    sys.exit(77)

PROGRAM = ""
WORDS = "What is a KV cache?"


class Verdict(pydantic.BaseModel):
    good: bool


class PydanticAi(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served(PROGRAM)

    @classmethod
    def tearDownClass(cls):
        cls.served.close()

    async def each_agent(self, **options):
        for kind in (OpenAIChatModel, OpenAIResponsesModel):
            async with openai.AsyncOpenAI(base_url=self.served.url + "/v1", api_key=KEY, max_retries=0) as client:
                with self.subTest(kind.__name__):
                    model = kind("house", provider=OpenAIProvider(openai_client=client))
                    yield pydantic_ai.Agent(model, model_settings={"temperature": 0, "max_tokens": 400}, **options)

    async def test_an_answer_is_the_same_whole_and_as_a_stream(self):
        async for agent in self.each_agent():
            whole = await agent.run(WORDS)
            self.assertTrue(whole.output)
            async with agent.run_stream(WORDS) as stream:
                parts = [part async for part in stream.stream_text(delta=True, debounce_by=None)]
            self.assertEqual("".join(parts), whole.output)

    async def test_an_answer_is_what_was_asked_for(self):
        async for agent in self.each_agent():
            for form in (pydantic_ai.NativeOutput(Verdict), pydantic_ai.ToolOutput(Verdict)):
                with self.subTest(type(form).__name__):
                    self.assertIsInstance((await agent.run("Is it good?", output_type=form)).output, Verdict)

    async def test_calls_and_results_go_back_in(self):
        async for agent in self.each_agent():
            @agent.tool_plain
            def clock(zone: str) -> str:
                """Tells the time."""
                return "noon in " + zone

            history = [
                messages.ModelRequest(parts=[messages.UserPromptPart("What time is it?")]),
                messages.ModelResponse(parts=[messages.ToolCallPart("clock", {"zone": "UTC"}, tool_call_id="call_1")]),
                messages.ModelRequest(parts=[messages.ToolReturnPart("clock", "noon in UTC", tool_call_id="call_1")])]
            answer = await agent.run(WORDS, message_history=history)
            self.assertIsInstance(answer.output, str)
            self.assertGreater(answer.usage.output_tokens, 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.quire
    unittest.main(argv=[sys.argv[0], *rest])
