#!/usr/bin/env python3
"""Uses `quire serve` through the package openai-agents, by Responses and by chat completions.

Exits with 77 if the package is not there, with 1 if something is wrong.

  python3 tests/clients/agents_client_test.py --quire build/release/quire
"""
import argparse
import asyncio
import sys
import unittest
from typing import Literal

from served import KEY, Served

try:
    import agents
    import openai
    import pydantic
except ImportError:
    print("skipped: the Python package openai-agents is not installed")
    sys.exit(77)

PROGRAM = ""
WORDS = "What is a KV cache?"
ASKED = []  # of the clock


class Verdict(pydantic.BaseModel):
    good: bool


@agents.function_tool
def clock(zone: Literal["UTC", "CET"]) -> str:
    """Tells the time."""
    ASKED.append(zone)
    return "noon"


class OpenAiAgents(unittest.IsolatedAsyncioTestCase):
    MODELS = (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel)

    @classmethod
    def setUpClass(cls):
        agents.set_tracing_disabled(True)
        cls.served = Served(PROGRAM)

    @classmethod
    def tearDownClass(cls):
        cls.served.close()

    async def each_agent(self, **options):
        settings = {"temperature": 0, "max_tokens": 400, **options.pop("settings", {})}
        for kind in self.MODELS:
            async with openai.AsyncOpenAI(base_url=self.served.url + "/v1", api_key=KEY, max_retries=0) as client:
                with self.subTest(kind.__name__):
                    yield agents.Agent(name="helper", instructions="Be brief.", model=kind(model="house", openai_client=client),
                                       model_settings=agents.ModelSettings(**settings), **options)

    async def test_an_answer_is_the_same_whole_and_as_a_stream(self):
        async for agent in self.each_agent():
            whole = (await agents.Runner.run(agent, WORDS)).final_output
            self.assertTrue(whole)
            stream = agents.Runner.run_streamed(agent, WORDS)
            said = "".join([event.data.delta async for event in stream.stream_events()
                            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"])
            self.assertEqual(said, whole)
            self.assertEqual(stream.final_output, whole)

    async def test_a_tool_is_called_and_its_result_goes_back_in(self):
        async for agent in self.each_agent(tools=[clock], settings={"tool_choice": "clock"}):
            for run in (self.run_whole, self.run_stream):
                ASKED.clear()
                result = await run(agent)
                self.assertEqual(len(ASKED), 1)
                self.assertIn(ASKED[0], ("UTC", "CET"))
                kinds = [item.type for item in result.new_items]
                self.assertEqual(kinds[:2], ["tool_call_item", "tool_call_output_item"])
                self.assertIn("message_output_item", kinds)
                self.assertEqual(result.new_items[1].output, "noon")

    @staticmethod
    async def run_whole(agent):
        return await agents.Runner.run(agent, WORDS, max_turns=3)

    @staticmethod
    async def run_stream(agent):
        stream = agents.Runner.run_streamed(agent, WORDS, max_turns=3)
        async for _ in stream.stream_events():
            pass
        return stream

    async def test_an_answer_is_what_was_asked_for(self):
        async for agent in self.each_agent(output_type=Verdict):
            self.assertIsInstance((await agents.Runner.run(agent, "Is it good?")).final_output, Verdict)

    async def test_usage_is_counted(self):
        async for agent in self.each_agent():
            usage = (await agents.Runner.run(agent, WORDS)).context_wrapper.usage
            self.assertGreater(usage.input_tokens, 0)
            self.assertEqual(usage.total_tokens, usage.input_tokens + usage.output_tokens)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.quire
    unittest.main(argv=[sys.argv[0], *rest])
