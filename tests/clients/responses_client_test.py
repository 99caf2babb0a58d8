#!/usr/bin/env python3
"""Uses /v1/responses of `quire serve` through the official openai package, as its users do.

Exits with 77 if the package is not there, with 1 if something is wrong.

  python3 tests/clients/responses_client_test.py --quire build/release/quire
"""
import argparse
import asyncio
import json
import sys
import unittest

from served import KEY, Served

try:
    import openai
    import pydantic
except ImportError:
    print("skipped: the Python package openai is not installed")
    sys.exit(77)

PROGRAM = ""
ZONE = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"],
        "additionalProperties": False}
CLOCK = {"type": "function", "name": "clock", "description": "Tells the time.", "parameters": ZONE, "strict": True}
WORDS = "What is a KV cache?"


class Verdict(pydantic.BaseModel):
    good: bool


class ResponsesTest(unittest.TestCase):
    OPTIONS = ()

    @classmethod
    def setUpClass(cls):
        cls.served = Served(PROGRAM, *cls.OPTIONS)
        cls.client = openai.OpenAI(base_url=cls.served.url + "/v1", api_key=KEY, max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.served.close()

    def ask(self, words=WORDS, **options):
        options = {"model": "house", "temperature": 0, "max_output_tokens": 64, **options}
        return self.client.responses.create(input=words, **options)


class Answers(ResponsesTest):
    def test_an_answer_is_a_message(self):
        response = self.ask(instructions="Be brief.", metadata={"who": "me"})
        self.assertEqual((response.object, response.model, response.error), ("response", "house", None))
        self.assertTrue(response.id.startswith("resp_"))
        self.assertIn(response.status, ("completed", "incomplete"))
        self.assertEqual([item.type for item in response.output], ["message"])
        self.assertTrue(response.output_text)
        self.assertEqual(response.output[0].content[0].annotations, [])
        self.assertEqual((response.instructions, response.metadata), ("Be brief.", {"who": "me"}))
        self.assertEqual((response.temperature, response.tool_choice, response.tools), (0, "auto", []))
        usage = response.usage
        self.assertEqual(usage.total_tokens, usage.input_tokens + usage.output_tokens)
        self.assertEqual(usage.output_tokens_details.reasoning_tokens, 0)

    def test_it_says_what_a_chat_would_say(self):
        chat = self.client.chat.completions.create(model="house", temperature=0, max_tokens=64,
                                                   messages=[{"role": "user", "content": WORDS}])
        self.assertEqual(self.ask().output_text, chat.choices[0].message.content)
        self.assertEqual(self.ask([{"role": "user", "content": [{"type": "input_text", "text": WORDS}]}]).output_text,
                         chat.choices[0].message.content)

    def test_what_is_cut_off_is_incomplete(self):
        response = self.ask(max_output_tokens=1)
        self.assertEqual(response.status, "incomplete")
        self.assertEqual(response.incomplete_details.reason, "max_output_tokens")
        self.assertEqual(response.usage.output_tokens, 1)

    def test_what_is_cached_is_counted(self):
        words = "Tell me all about the pages of a cache, one after the other, and who holds them."
        self.ask(words)
        self.assertGreater(self.ask(words).usage.input_tokens_details.cached_tokens, 0)

    def test_what_is_wrong_or_not_there_is_named(self):
        for field, value in [("background", True), ("truncation", "auto"), ("top_logprobs", 2),
                             ("conversation", "conv_1"), ("max_tool_calls", 2)]:
            with self.subTest(field), self.assertRaises(openai.BadRequestError) as caught:
                self.ask(**{field: value})
            self.assertEqual(caught.exception.param, field)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(tools=[{"type": "web_search"}])
        self.assertEqual(caught.exception.param, "tools[0].type")
        picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask([{"role": "user", "content": [picture]}])
        self.assertEqual(caught.exception.param, "input[0].content[0]")
        with self.assertRaises(openai.NotFoundError):
            self.ask(model="gpt-5")


class Streams(ResponsesTest):
    def test_a_stream_is_the_same_answer(self):
        whole = self.ask()
        events = list(self.ask(stream=True))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        types = [event.type for event in events]
        self.assertEqual(types[:4], ["response.created", "response.in_progress", "response.output_item.added",
                                     "response.content_part.added"])
        self.assertEqual(types[-4:], ["response.output_text.done", "response.content_part.done",
                                      "response.output_item.done", "response." + whole.status])
        self.assertEqual(set(types[4:-4]), {"response.output_text.delta"})
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)
        self.assertEqual(events[-1].response.output_text, text)
        self.assertEqual(events[-1].response.usage.output_tokens, whole.usage.output_tokens)

    def test_the_stream_of_the_package_ends_with_the_response(self):
        with self.client.responses.stream(model="house", input=WORDS, temperature=0) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        self.assertEqual((final.status, final.output_text), ("completed", text))
        self.assertEqual(self.client.responses.retrieve(final.id).output_text, text)

    def test_calls_are_streamed(self):
        with self.client.responses.stream(model="house", input="What time is it?", temperature=0, tools=[CLOCK],
                                          tool_choice="required") as stream:
            events = list(stream)
            final = stream.get_final_response()
        done = [event for event in events if event.type == "response.function_call_arguments.done"]
        self.assertEqual(len(done), 1)
        self.assertEqual(final.output[0].arguments, done[0].arguments)
        self.assertEqual(final.output[0].parsed_arguments, json.loads(done[0].arguments))

    def test_many_at_once(self):
        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=self.served.url + "/v1", api_key=KEY, max_retries=0) as client:
                async def one():
                    stream = await client.responses.create(model="house", input=WORDS, temperature=0,
                                                           max_output_tokens=16, stream=True)
                    return [event async for event in stream][-1].response.output_text
                return await asyncio.gather(*[one() for _ in range(4)])
        self.assertEqual(set(asyncio.run(all_of_them())), {self.ask(max_output_tokens=16).output_text})


class Forms(ResponsesTest):
    def test_an_answer_keeps_to_a_schema(self):
        response = self.client.responses.parse(model="house", input="Is it good?", temperature=0, text_format=Verdict,
                                               max_output_tokens=200)
        self.assertIsInstance(response.output_parsed, Verdict)
        self.assertEqual(json.loads(response.output_text), response.output_parsed.model_dump())

    def test_a_stream_keeps_to_a_schema(self):
        with self.client.responses.stream(model="house", input="Is it good?", temperature=0,
                                          text_format=Verdict) as stream:
            stream.until_done()
            self.assertIsInstance(stream.get_final_response().output_parsed, Verdict)

    def test_a_call_can_be_forced_and_its_result_goes_back(self):
        for choice in ("required", {"type": "function", "name": "clock"},
                       {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]}):
            response = self.ask("What time is it?", tools=[CLOCK], tool_choice=choice, max_output_tokens=400)
            self.assertEqual([(item.type, item.name) for item in response.output], [("function_call", "clock")])
            self.assertIn(json.loads(response.output[0].arguments)["zone"], ("UTC", "CET"))
        call = response.output[0]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
        by_id = self.ask([result], tools=[CLOCK], previous_response_id=response.id)
        by_hand = self.ask([{"role": "user", "content": "What time is it?"}, call.to_dict(), result], tools=[CLOCK])
        self.assertEqual(by_id.output_text, by_hand.output_text)


class Turns(ResponsesTest):
    def test_a_response_can_be_asked_for_again(self):
        response = self.ask()
        again = self.client.responses.retrieve(response.id)
        self.assertEqual(again.to_dict(), response.to_dict())
        self.client.responses.delete(response.id)
        for lost in (lambda: self.client.responses.retrieve(response.id),
                     lambda: self.client.responses.delete(response.id)):
            with self.assertRaises(openai.NotFoundError):
                lost()
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(previous_response_id=response.id)
        self.assertEqual(caught.exception.code, "previous_response_not_found")

    def test_what_is_not_to_be_stored_is_not(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(self.ask(store=False).id)

    def test_a_conversation_goes_on_from_a_response(self):
        first = self.ask("My name is Ada.")
        self.assertEqual(first.status, "completed")
        second = self.ask("And?", previous_response_id=first.id)
        third = self.ask("So?", previous_response_id=second.id, store=False)
        by_hand = self.ask([{"role": "user", "content": "My name is Ada."}, *[i.to_dict() for i in first.output],
                            {"role": "user", "content": "And?"}, *[i.to_dict() for i in second.output],
                            {"role": "user", "content": "So?"}])
        self.assertEqual(third.output_text, by_hand.output_text)
        self.assertEqual(third.usage.input_tokens, by_hand.usage.input_tokens)
        self.assertEqual(third.previous_response_id, second.id)


class Bounds(ResponsesTest):
    OPTIONS = ("--response-memory", "0")

    def test_without_memory_nothing_is_kept(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(self.ask().id)


class Keys(ResponsesTest):
    OPTIONS = ("--api-key", "other")

    def test_another_key_sees_nothing(self):
        response = self.ask()
        with openai.OpenAI(base_url=self.served.url + "/v1", api_key="other", max_retries=0) as other:
            with self.assertRaises(openai.NotFoundError):
                other.responses.retrieve(response.id)
            with self.assertRaises(openai.NotFoundError):
                other.responses.delete(response.id)
            with self.assertRaises(openai.BadRequestError):
                other.responses.create(model="house", input="And?", previous_response_id=response.id)
        self.assertEqual(self.client.responses.retrieve(response.id).id, response.id)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.quire
    unittest.main(argv=[sys.argv[0], *rest])
