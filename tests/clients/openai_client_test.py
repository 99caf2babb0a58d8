#!/usr/bin/env python3
"""Uses `quire serve` through the official openai package, as its users do: sync, async, streaming, errors.

Exits with 77 if the package is not there, with 1 if something is wrong.

  python3 tests/clients/openai_client_test.py --quire build/release/quire
"""
import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

try:
    import openai
except ImportError:
    print("skipped: the Python package openai is not installed")
    sys.exit(77)

PROGRAM = ""
KEY = "sesame"
ENDLESS = {"max_tokens": 1900, "extra_body": {"ignore_eos": True}}


class Served:
    """The program on a port that was free, until it is closed."""

    def __init__(self, *options):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "QUIRE_"))}
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--port", "0", "--grace-seconds", "0", "--api-key", KEY, *options],
            stderr=subprocess.PIPE, text=True, env=environment)
        line = self.process.stderr.readline()
        found = re.search(r"http://\S+:(\d+)", line)
        if not found:
            raise RuntimeError("quire serve did not start: " + line + self.process.stderr.read())
        self.url = f"http://127.0.0.1:{found[1]}"

    def close(self):
        self.process.terminate()
        rest = self.process.stderr.read()
        self.process.stderr.close()
        assert self.process.wait() == 0, rest

    def client(self, **options):
        options = {"api_key": KEY, "max_retries": 0, **options}
        return openai.OpenAI(base_url=self.url + "/v1", **options)

    def async_client(self):
        return openai.AsyncOpenAI(base_url=self.url + "/v1", api_key=KEY, max_retries=0)

    def get(self, path):
        request = urllib.request.Request(self.url + path, headers={"Authorization": "Bearer " + KEY})
        with urllib.request.urlopen(request) as reply:
            return reply.read().decode()

    def running(self):
        return json.loads(self.get("/requests"))["running"]

    def wait_until_idle(self):
        while self.running() > 0:
            pass

    def metric(self, name):
        found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", self.get("/metrics"), re.MULTILINE)
        return float(found[1]) if found else None


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served()
        cls.client = cls.served.client()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.served.close()

    def chat(self, words="What is a KV cache?", **options):
        options = {"model": "house", "temperature": 0, "max_tokens": 24, **options}
        return self.client.chat.completions.create(messages=[{"role": "user", "content": words}], **options)

    def complete(self, prompt="Once upon a time", **options):
        options = {"model": "house", "temperature": 0, "max_tokens": 16, **options}
        return self.client.completions.create(prompt=prompt, **options)


class Models(ClientTest):
    def test_are_listed_and_found(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["house"])
        model = self.client.models.retrieve("house")
        self.assertEqual((model.id, model.object), ("house", "model"))
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.models.retrieve("gpt-5")
        self.assertEqual(caught.exception.code, "model_not_found")


class Chats(ClientTest):
    def test_an_answer_is_an_assistants_message(self):
        answer = self.chat()
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.model, "house")
        choice = answer.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        self.assertIn("KV cache", choice.message.content)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertTrue(answer._request_id == answer.id)

    def test_a_stream_is_the_same_answer(self):
        text, reasons = "", []
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        for chunk in chunks[:-1]:
            self.assertIsNone(chunk.usage)
            text += chunk.choices[0].delta.content or ""
            reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
        whole = self.chat()
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(reasons, [whole.choices[0].finish_reason])
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)

    def test_the_stream_helper_understands_it(self):
        messages = [{"role": "user", "content": "What is a KV cache?"}]
        with self.client.chat.completions.stream(model="house", messages=messages,
                                                 temperature=0) as stream:
            kinds = {event.type for event in stream}
            answer = stream.get_final_completion()
        self.assertIn("content.delta", kinds)
        self.assertEqual(answer.choices[0].message.content, self.chat(max_tokens=None).choices[0].message.content)

    def test_the_second_time_the_prompt_is_cached(self):
        words = "Tell me all about the pages of a cache, one after the other, and who holds them."
        self.chat(words, max_tokens=1)
        again = self.chat(words, max_tokens=1)
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 0)

    def test_choices_seeds_stops_and_limits(self):
        many = self.chat(n=3, temperature=1, seed=5)
        self.assertEqual([c.index for c in many.choices], [0, 1, 2])
        self.assertGreater(len({c.message.content for c in many.choices}), 1)
        again = self.chat(n=3, temperature=1, seed=5)
        self.assertEqual([c.message.content for c in many.choices], [c.message.content for c in again.choices])
        other = self.chat(temperature=1, seed=6)
        self.assertNotEqual(other.choices[0].message.content, many.choices[0].message.content)
        whole = self.chat().choices[0].message.content
        stopped = self.chat(stop=["cache", "zzz"]).choices[0]
        self.assertEqual(stopped.message.content, whole[: whole.index("cache")])
        self.assertEqual(stopped.finish_reason, "stop")
        self.assertEqual(self.chat(max_completion_tokens=3, max_tokens=openai.omit).usage.completion_tokens, 3)

    def test_logprobs_biases_and_penalties(self):
        content = self.chat(logprobs=True, top_logprobs=2, max_tokens=5).choices[0].logprobs.content
        self.assertEqual(len(content), 5)
        for token in content:
            self.assertEqual(token.top_logprobs[0].token, token.token)
            self.assertEqual(bytes(token.bytes).decode(), token.token)
        forced = self.chat(logit_bias={"300": 100}, logprobs=True, max_tokens=4).choices[0].logprobs.content
        self.assertEqual(len({token.token for token in forced}), 1)
        self.chat(presence_penalty=1, frequency_penalty=0.5, top_p=0.9, temperature=0.7)

    def test_a_report_comes_in_extra_fields(self):
        answer = self.chat(extra_body={"quire": True})
        self.assertEqual(answer.model_extra["quire"]["id"], answer.id)
        self.assertEqual(self.chat(response_format={"type": "text"}).choices[0].index, 0)

    def test_raw_responses_have_headers(self):
        raw = self.client.chat.completions.with_raw_response.create(
            model="house", messages=[{"role": "user", "content": "Hi"}], max_tokens=2)
        self.assertEqual(raw.status_code, 200)
        self.assertEqual(raw.headers["x-request-id"], raw.parse().id)
        with self.client.chat.completions.with_streaming_response.create(
                model="house", messages=[{"role": "user", "content": "Hi"}], max_tokens=2, stream=True) as reply:
            lines = [line for line in reply.iter_lines() if line]
        self.assertTrue(all(line.startswith("data: ") for line in lines))
        self.assertEqual(lines[-1], "data: [DONE]")


CLOCK = {"type": "function", "function": {"name": "clock", "description": "Tells the time.", "parameters": {
    "type": "object", "properties": {"zone": {"type": "string"}}}}}


class Tools(ClientTest):
    """The house model knows no tools: what it is told of them, and what comes back in."""

    def turn(self, **options):
        call = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
        messages = [{"role": "user", "content": "What time is it?"},
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "call_1", "content": "noon"}]
        return self.client.chat.completions.create(model="house", messages=messages, temperature=0, max_tokens=8,
                                                   **options)

    def test_the_model_is_told_of_tools(self):
        bare = self.chat("What time is it?", max_tokens=1).usage.prompt_tokens
        told = self.chat("What time is it?", max_tokens=1, tools=[CLOCK], parallel_tool_calls=False)
        self.assertGreater(told.usage.prompt_tokens, bare + 30)
        self.assertIn(told.choices[0].finish_reason, ("stop", "length", "tool_calls"))

    def test_calls_and_results_go_back_in(self):
        answer = self.turn(tools=[CLOCK], tool_choice="auto", reasoning_effort="low")
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(self.turn(tools=[CLOCK], tool_choice="none").choices[0].message.role, "assistant")

    def test_a_call_can_be_forced_of_a_model_that_knows_no_tools(self):
        tool = {"type": "function", "function": {"name": "count", "strict": True, "parameters": {
            "type": "object", "properties": {"times": {"type": "integer", "minimum": 1, "maximum": 20},
                                             "what": {"enum": ["pages", "tokens"]}},
            "required": ["times", "what"], "additionalProperties": False}}}
        for choice in ["required", {"type": "function", "function": {"name": "count"}}]:
            for seed in range(4):
                answer = self.chat("How many?", tools=[CLOCK, tool] if seed % 2 and choice != "required" else [tool],
                                   tool_choice=choice, temperature=1.5, seed=seed, max_tokens=200).choices[0]
                self.assertEqual(answer.finish_reason, "tool_calls")
                self.assertEqual([call.function.name for call in answer.message.tool_calls], ["count"])
                arguments = json.loads(answer.message.tool_calls[0].function.arguments)
                self.assertEqual(set(arguments), {"times", "what"})
                self.assertIn(arguments["times"], range(1, 21))

    def test_an_answer_is_parsed_into_what_was_asked_for(self):
        schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"],
                  "additionalProperties": False}
        answer = self.chat("Is it?", response_format={
            "type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}, max_tokens=100)
        self.assertIn(json.loads(answer.choices[0].message.content), ({"yes": True}, {"yes": False}))

    def test_the_stream_helper_takes_tools(self):
        messages = [{"role": "user", "content": "What time is it?"}]
        with self.client.chat.completions.stream(model="house", messages=messages, tools=[CLOCK], temperature=0,
                                                 max_tokens=8) as stream:
            self.assertIn("chunk", {event.type for event in stream})
            self.assertEqual(stream.current_completion_snapshot.choices[0].message.role, "assistant")

    def test_token_ids_come_if_asked_for(self):
        answer = self.chat(max_tokens=5, extra_body={"return_token_ids": True, "ignore_eos": True})
        self.assertEqual(len(answer.choices[0].model_extra["token_ids"]), 5)
        self.assertEqual(len(answer.model_extra["prompt_token_ids"]), answer.usage.prompt_tokens)
        chunks = list(self.chat(max_tokens=5, stream=True, extra_body={"return_token_ids": True, "ignore_eos": True}))
        ids = [i for c in chunks for choice in c.choices for i in (choice.model_extra or {}).get("token_ids", [])]
        self.assertEqual(ids, answer.choices[0].model_extra["token_ids"])


class Completions(ClientTest):
    def test_a_text_is_continued(self):
        answer = self.complete()
        self.assertEqual(answer.object, "text_completion")
        self.assertTrue(answer.choices[0].text)
        streamed = "".join(chunk.choices[0].text for chunk in self.complete(stream=True))
        self.assertEqual(streamed, answer.choices[0].text)

    def test_an_echoed_prompt_has_the_log_probabilities_of_quire_perplexity(self):
        text = "Once upon a time there was a cache. It kept what it had computed, page by page, and forgot the oldest."
        told = json.loads(subprocess.run([PROGRAM, "perplexity", "--json", "--per-token", "-"], input=text, text=True,
                                         capture_output=True, check=True).stdout)["nll"]
        options = {"prompt": text, "echo": True, "logprobs": 1}
        for more in ({"max_tokens": 1}, {"max_tokens": 0}, {"max_tokens": 1, "n": 2}):
            for choice in self.complete(**options, **more).choices:
                logprobs = choice.logprobs
                self.assertEqual(logprobs.token_logprobs[0], None)
                self.assertEqual([-value for value in logprobs.token_logprobs[1:len(told) + 1]], told)
                self.assertEqual(len(logprobs.tokens), len(told) + 1 + more["max_tokens"])
                self.assertEqual(len(logprobs.text_offset), len(logprobs.tokens))
                for value, top in zip(logprobs.token_logprobs[1:], logprobs.top_logprobs[1:]):
                    self.assertLessEqual(value, max(top.values()) + 1e-6)
        self.assertEqual(self.complete(**options, max_tokens=0).choices[0].text, text)
        chunks = list(self.complete(**options, max_tokens=1, stream=True))
        streamed = [v for c in chunks if c.choices and c.choices[0].logprobs
                    for v in c.choices[0].logprobs.token_logprobs]
        self.assertEqual(streamed, self.complete(**options, max_tokens=1).choices[0].logprobs.token_logprobs)

    def test_token_ids_come_if_asked_for(self):
        answer = self.complete(max_tokens=5, extra_body={"return_token_ids": True, "ignore_eos": True})
        choice = answer.choices[0].model_extra
        self.assertEqual((len(choice["token_ids"]), len(choice["prompt_token_ids"])), (5, answer.usage.prompt_tokens))
        chunks = self.complete(max_tokens=5, stream=True, extra_body={"return_token_ids": True, "ignore_eos": True})
        ids = [i for c in chunks for one in c.choices for i in (one.model_extra or {}).get("token_ids", [])]
        self.assertEqual(ids, choice["token_ids"])

    def test_echo_logprobs_and_several_prompts(self):
        answer = self.complete(["One day", "Two"], n=2)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2, 3])
        text = self.complete("One day").choices[0].text
        self.assertEqual(answer.choices[0].text, text)
        self.assertEqual(self.complete("One day", echo=True).choices[0].text, "One day" + text)
        self.assertEqual(self.complete("One day", echo=True, max_tokens=0).choices[0].text, "One day")
        logprobs = self.complete(logprobs=2).choices[0].logprobs
        self.assertEqual(len(logprobs.tokens), 16)
        self.assertEqual("".join(logprobs.tokens), self.complete().choices[0].text)
        for token, best in zip(logprobs.tokens, logprobs.top_logprobs):
            self.assertIn(token, best)
        for i, offset in enumerate(logprobs.text_offset):
            self.assertEqual(offset, len("".join(logprobs.tokens[:i])))

    def test_prompts_may_be_tokens(self):
        request = urllib.request.Request(
            self.served.url + "/tokenize", json.dumps({"prompt": "One day"}).encode(),
            {"Authorization": "Bearer " + KEY, "Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            tokens = json.load(reply)["tokens"]
        text = self.complete("One day").choices[0].text
        self.assertEqual(self.complete(tokens).choices[0].text, text)
        self.assertEqual(self.complete([tokens, tokens]).choices[1].text, text)


class Embeddings(ClientTest):
    TEXTS = ["a page of keys", "the cat sat on the mat"]

    def test_vectors_are_the_same_as_numbers_and_as_bytes(self):
        numbers = self.client.embeddings.create(model="house", input=self.TEXTS, encoding_format="float")
        packed = self.client.embeddings.create(model="house", input=self.TEXTS)  # it asks for base64
        for one, other in zip(numbers.data, packed.data, strict=True):
            self.assertEqual(len(one.embedding), len(other.embedding))
            for a, b in zip(one.embedding, other.embedding):
                self.assertAlmostEqual(a, b, places=6)
            self.assertAlmostEqual(sum(x * x for x in one.embedding), 1, places=5)
        self.assertEqual(numbers.usage.total_tokens, packed.usage.prompt_tokens)

    def test_they_can_be_shorter_and_not_longer(self):
        short = self.client.embeddings.create(model="house", input=self.TEXTS[0], dimensions=16).data[0].embedding
        self.assertEqual(len(short), 16)
        self.assertAlmostEqual(sum(x * x for x in short), 1, places=5)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.embeddings.create(model="house", input=self.TEXTS[0], dimensions=10**6)
        self.assertEqual(caught.exception.param, "dimensions")


class Errors(ClientTest):
    def test_wrong_fields_are_bad_requests_that_name_them(self):
        for field, value in [("temperature", 9), ("n", 0), ("tool_choice", "required"), ("logit_bias", {"99999999": 1}),
                             ("response_format", {"type": "yaml"}), ("max_tokens", 0)]:
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**{field: value})
            self.assertEqual(caught.exception.param, field)
            self.assertEqual(caught.exception.type, "invalid_request_error")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat("word " * 5000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_an_unknown_model_is_not_found(self):
        with self.assertRaises(openai.NotFoundError):
            self.chat(model="gpt-5")
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model="text-embedding-3-small", input="x")
        with self.assertRaises(openai.NotFoundError):
            self.client.images.generate(model="house", prompt="x")

    def test_a_wrong_key_is_an_authentication_error(self):
        with self.served.client(api_key="wrong") as stranger, self.assertRaises(openai.AuthenticationError):
            stranger.models.list()

    def test_a_deadline_is_an_error_that_is_not_retried(self):
        with self.served.client(max_retries=2) as client, self.assertRaises(openai.InternalServerError) as caught:
            client.completions.create(model="house", prompt="Hi", max_tokens=1900,
                                      extra_body={"ignore_eos": True, "quire": {"deadline_ms": 20}})
        self.assertEqual(caught.exception.code, "deadline_exceeded")
        refused = re.search(r'quire_requests_refused_total{.*status="504"} (\d+)', self.served.get("/metrics"))
        self.assertEqual(refused[1], "1")


class Leaving(ClientTest):
    def test_closing_a_stream_early_ends_the_request(self):
        before = self.served.metric("quire_requests_cancelled_total")
        stream = self.complete(stream=True, **ENDLESS)
        next(iter(stream))
        stream.close()
        self.served.wait_until_idle()
        self.assertEqual(self.served.metric("quire_requests_cancelled_total"), before + 1)

    def test_a_client_that_has_waited_long_enough_ends_the_request(self):
        before = self.served.metric("quire_requests_cancelled_total")
        with self.assertRaises(openai.APITimeoutError):
            self.complete(timeout=0.1, n=16, **ENDLESS)
        self.served.wait_until_idle()
        self.assertEqual(self.served.metric("quire_requests_cancelled_total"), before + 16)

    def test_deleting_a_request_is_an_error_in_its_stream(self):
        stream = self.complete(stream=True, **ENDLESS)
        chunks = iter(stream)
        number = next(chunks).id
        request = urllib.request.Request(f"{self.served.url}/requests/{number}", method="DELETE",
                                         headers={"Authorization": "Bearer " + KEY})
        urllib.request.urlopen(request).close()
        with self.assertRaises(openai.APIError) as caught:
            for _ in chunks:
                pass
        self.assertEqual(caught.exception.code, "cancelled")


class Async(ClientTest):
    def test_many_at_once_get_what_each_would_get_alone(self):
        async def ask_all():
            async with self.served.async_client() as client:
                async def whole(seed):
                    answer = await client.completions.create(model="house", prompt="Once", seed=seed, temperature=1,
                                                             max_tokens=24)
                    return answer.choices[0].text

                async def streamed(seed):
                    stream = await client.completions.create(model="house", prompt="Once", seed=seed, temperature=1,
                                                             max_tokens=24, stream=True)
                    return "".join([chunk.choices[0].text async for chunk in stream])

                self.assertEqual([model.id async for model in client.models.list()], ["house"])
                return await asyncio.gather(*(whole(s) for s in range(6)), *(streamed(s) for s in range(6)))

        texts = asyncio.run(ask_all())
        self.assertEqual(texts[:6], texts[6:])
        for seed in range(6):
            alone = self.complete("Once", seed=seed, temperature=1, max_tokens=24)
            self.assertEqual(alone.choices[0].text, texts[seed])

    def test_closing_a_stream_early_ends_the_request(self):
        async def leave():
            async with self.served.async_client() as client:
                stream = await client.completions.create(model="house", prompt="Once", stream=True, **ENDLESS)
                async for _ in stream:
                    break
                await stream.close()
                with self.assertRaises(openai.BadRequestError):
                    await client.completions.create(model="house", prompt="Once", n=0)

        asyncio.run(leave())
        self.served.wait_until_idle()


class Limits(unittest.TestCase):
    def test_a_stream_that_waits_gives_signs_of_life(self):
        body = {"model": "house", "prompt": "page " * 1500, "max_tokens": 2, "stream": True}
        with contextlib.closing(Served("--keep-alive-seconds", "0.001")) as served, served.client() as client:
            request = urllib.request.Request(served.url + "/v1/completions", data=json.dumps(body).encode(), headers={
                "Authorization": "Bearer " + KEY, "Content-Type": "application/json"})
            with urllib.request.urlopen(request) as reply:
                self.assertTrue(reply.read().startswith(b": keep-alive\n\n"))
            body["prompt"] = "leaf " * 1500
            self.assertEqual(list(client.completions.create(**body))[-1].choices[0].finish_reason, "length")

    def test_too_many_answers_are_a_rate_limit_error_and_a_retry_gets_through(self):
        with contextlib.closing(Served("--max-seqs", "2", "--max-queue", "0")) as served:
            with served.client() as client, served.client(max_retries=20) as patient:
                streams = [client.completions.create(model="house", prompt="Hi", stream=True, **ENDLESS)
                           for _ in range(2)]
                with self.assertRaises(openai.RateLimitError) as caught:
                    client.completions.create(model="house", prompt="Hi", max_tokens=1)
                self.assertEqual(caught.exception.response.headers["retry-after"], "1")
                for stream in streams:
                    stream.close()
                patient.completions.create(model="house", prompt="Hi", max_tokens=1)


def main():
    global PROGRAM
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", required=True, help="the program")
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.quire
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
