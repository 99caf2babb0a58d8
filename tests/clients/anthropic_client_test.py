#!/usr/bin/env python3
"""Uses `quire serve` through the official anthropic package, as its users do.

Exits with 77 if the package is not there, with 1 if something is wrong.

  python3 tests/clients/anthropic_client_test.py --quire build/release/quire
"""
import argparse
import sys
import unittest

from served import KEY, Served

try:
    import anthropic
except ImportError:
    print("skipped: the Python package anthropic is not installed")
    sys.exit(77)

PROGRAM = ""
TOOL = {"name": "clock", "description": "Tells the time.",
        "input_schema": {"type": "object", "properties": {"zone": {"type": "string"}}}}


class Messages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served(PROGRAM)
        cls.client = anthropic.Anthropic(base_url=cls.served.url, api_key=KEY, max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.served.close()

    def ask(self, words="What is a KV cache?", **options):
        options = {"model": "house", "max_tokens": 24, "extra_body": {"temperature": 0}, **options}
        options.setdefault("messages", [{"role": "user", "content": words}])
        return self.client.messages.create(**options)

    def test_an_answer_is_a_message(self):
        message = self.ask(system="Be brief.")
        self.assertEqual((message.type, message.role, message.model), ("message", "assistant", "house"))
        self.assertTrue(message.id.startswith("msg_"))
        self.assertEqual(message.content[0].type, "text")
        self.assertTrue(message.content[0].text)
        self.assertIn(message.stop_reason, ("end_turn", "max_tokens"))
        self.assertGreater(message.usage.input_tokens + message.usage.cache_read_input_tokens, 0)
        self.assertGreater(message.usage.output_tokens, 0)

    def test_a_stream_is_the_same_answer(self):
        whole = self.ask()
        with self.client.messages.stream(model="house", max_tokens=24, extra_body={"temperature": 0},
                                         messages=[{"role": "user", "content": "What is a KV cache?"}]) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(final.content[0].text, text)
        self.assertEqual(final.stop_reason, whole.stop_reason)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_events_come_in_their_order(self):
        events = [event.type for event in self.ask(stream=True)]
        self.assertEqual(events[:2], ["message_start", "content_block_start"])
        self.assertEqual(events[-3:], ["content_block_stop", "message_delta", "message_stop"])
        self.assertEqual(set(events[2:-3]), {"content_block_delta"})

    def test_what_is_cached_is_counted(self):
        words = "Tell me all about the pages of a cache, one after the other, and who holds them."
        self.ask(words, max_tokens=1)
        self.assertGreater(self.ask(words, max_tokens=1).usage.cache_read_input_tokens, 0)

    def test_a_number_that_changes_does_not_part_prompts(self):
        def prompt(number):
            return [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={number};"},
                    {"type": "text", "text": "You tell all about pages and caches and who holds them, at length.",
                     "cache_control": {"type": "ephemeral"}}]
        self.ask("And?", max_tokens=1, system=prompt("0a1b2"))
        again = self.ask("And?", max_tokens=1, system=prompt("f3e4d"))
        self.assertLessEqual(again.usage.input_tokens, 1)

    def test_stops_are_told(self):
        whole = self.ask().content[0].text
        word = whole.split()[2]
        message = self.ask(stop_sequences=[word])
        self.assertEqual((message.stop_reason, message.stop_sequence), ("stop_sequence", word))
        self.assertEqual(message.content[0].text, whole[:whole.index(word)])

    def test_tokens_are_counted_with_tools(self):
        messages = [{"role": "user", "content": "What time is it?"}]
        bare = self.client.messages.count_tokens(model="house", messages=messages)
        tools = self.client.messages.count_tokens(model="house", messages=messages, tools=[TOOL])
        self.assertGreater(tools.input_tokens, bare.input_tokens)
        self.assertEqual(self.ask(messages=messages, max_tokens=1).usage.output_tokens, 1)

    def test_calls_and_results_go_back_in(self):
        message = self.ask(messages=[
            {"role": "user", "content": "What time is it?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I ask the clock.", "signature": ""},
                {"type": "tool_use", "id": "toolu_1", "name": "clock", "input": {"zone": "UTC"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "noon"}]},
                {"type": "text", "text": "So?"}]}], tools=[TOOL], tool_choice={"type": "auto"})
        self.assertEqual(message.role, "assistant")

    def test_a_call_can_be_forced(self):
        zone = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "additionalProperties": False}
        message = self.ask(tools=[TOOL | {"input_schema": zone}], tool_choice={"type": "any"}, max_tokens=400)
        self.assertEqual(message.stop_reason, "tool_use")
        self.assertEqual([(block.type, block.name) for block in message.content], [("tool_use", "clock")])
        self.assertIsInstance(message.content[0].input, dict)

    def test_what_is_wrong_is_said_in_their_words(self):
        with self.assertRaises(anthropic.NotFoundError):
            self.ask(model="claude")
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask(tools=[TOOL], tool_choice={"type": "tool", "name": "oracle"})
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        with self.assertRaises(anthropic.BadRequestError):
            self.ask(messages=[{"role": "user", "content": [picture]}])
        stranger = anthropic.Anthropic(base_url=self.served.url, api_key="wrong", max_retries=0)
        with self.assertRaises(anthropic.AuthenticationError):
            stranger.messages.count_tokens(model="house", messages=[{"role": "user", "content": "Hi"}])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.quire
    unittest.main(argv=[sys.argv[0], *rest])
