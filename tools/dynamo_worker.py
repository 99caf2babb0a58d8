#!/usr/bin/env python3
"""A worker for NVIDIA Dynamo: its frontend, router, planner and migration see a `quire serve` as an engine of theirs.

    quire serve -m MODEL --port 8080 --kv-events tcp://127.0.0.1:5557
    tools/dynamo_worker.py --url http://127.0.0.1:8080 --tokenizer FOLDER --discovery-backend file
    python3 -m dynamo.frontend --discovery-backend file --router-mode kv

FOLDER has the model's tokenizer.json, tokenizer_config.json and config.json, as Hugging Face's has them: Dynamo makes and reads tokens itself.
What the cache holds is heard from --kv-events, if the server says where. The server's key is read from QUIRE_API_KEY. It needs ai-dynamo 1.6.
"""
import argparse
import asyncio
import json
import os
import signal
import sys

import aiohttp
from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, Worker, WorkerConfig
from dynamo.common.backend.publisher import ZmqSource
from dynamo.llm.exceptions import CannotConnect, EngineShutdown, InvalidArgument, WorkerUnavailable

BLOCK = 32  # tokens of a page
# What Dynamo calls it, and what the server does.
SAMPLING = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "seed": "seed",
            "frequency_penalty": "frequency_penalty", "presence_penalty": "presence_penalty", "repetition_penalty": "repetition_penalty"}
CONSTRAINTS = {"json": "guided_json", "regex": "guided_regex", "grammar": "guided_grammar", "choice": "guided_choice"}


def body_of(request, model, context):
    """The completion that Dynamo asks for. InvalidArgument names what the server does not know."""
    sampling = {name: value for name, value in (request.get("sampling_options") or {}).items() if value is not None}
    stop = {name: value for name, value in (request.get("stop_conditions") or {}).items() if value is not None}
    tokens = request["token_ids"]
    body = {"model": model, "prompt": tokens, "stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    body["max_tokens"] = stop.get("max_tokens", max(1, context - len(tokens)))
    if sampling.get("n", 1) != 1:
        raise InvalidArgument("a worker gives one answer at a time: n must be 1")
    body.update({ours: sampling[theirs] for theirs, ours in SAMPLING.items() if theirs in sampling})
    if body.get("top_k") == -1:  # all
        del body["top_k"]
    for theirs, ours in CONSTRAINTS.items():
        if (value := (sampling.get("guided_decoding") or {}).get(theirs)) is not None:
            body[ours] = value
    if (sampling.get("guided_decoding") or {}).get("structural_tag") is not None:
        raise InvalidArgument("structural tags are not known")
    if stop.get("min_tokens"):
        body["min_tokens"] = stop["min_tokens"]
    if stop.get("ignore_eos"):
        body["ignore_eos"] = True
    # What Dynamo hides from its reader is the end of the answer all the same; texts to stop at it looks for itself.
    ends = [*stop.get("stop_token_ids", []), *stop.get("stop_token_ids_hidden", []), *stop.get("stop_token_ids_visible", [])]
    if ends and not stop.get("ignore_eos"):
        body["stop_token_ids"] = sorted(set(ends))
    if (logprobs := (request.get("output_options") or {}).get("logprobs")) is not None:
        raise InvalidArgument(f"log-probabilities ({logprobs}) are to be had from the server itself")
    return body


class QuireEngine(LLMEngine):
    """One server. What is asked of it goes over its API; who stops reading has ended the request there."""

    def __init__(self, url, tokenizer, name):
        self.url, self.tokenizer, self.name = url.rstrip("/"), tokenizer, name
        self.session, self.watcher = None, None
        self.context = 0
        self.events = None

    @classmethod
    async def from_args(cls, argv=None):
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--url", default="http://127.0.0.1:8080")
        parser.add_argument("--tokenizer", required=True, help="a folder with the model's tokenizer and config.json")
        parser.add_argument("--model-name", help="what clients call it (default: what the server calls it)")
        parser.add_argument("--namespace", default="dynamo")
        parser.add_argument("--component", default="backend")
        parser.add_argument("--endpoint", default="generate")
        parser.add_argument("--discovery-backend", default="etcd")
        parser.add_argument("--request-plane", default="tcp")
        parser.add_argument("--event-plane", default=None)
        options = parser.parse_args(argv)
        engine = cls(options.url, options.tokenizer, options.model_name)
        await engine.ask()
        config = WorkerConfig(namespace=options.namespace, component=options.component, endpoint=options.endpoint, model_name=options.tokenizer,
                              served_model_name=engine.name, discovery_backend=options.discovery_backend, request_plane=options.request_plane,
                              event_plane=options.event_plane, use_kv_events=engine.events is not None,
                              enable_kv_routing=engine.events is not None)
        return engine, config

    def headers(self):
        key = os.environ.get("QUIRE_API_KEY")
        return {"Authorization": "Bearer " + key} if key else {}

    async def ask(self):
        """What the server says of itself."""
        async with aiohttp.ClientSession(headers=self.headers()) as session, session.get(self.url + "/server_info") as reply:
            reply.raise_for_status()
            told = await reply.json()
        self.name = self.name or told["served_model_name"]
        self.served = told["served_model_name"]
        self.context = told["context_length"]
        self.events = told.get("kv_events")

    async def start(self, worker_id):
        self.session = aiohttp.ClientSession(headers=self.headers(), timeout=aiohttp.ClientTimeout(total=None))
        self.watcher = asyncio.create_task(self.watch())
        return EngineConfig(model=self.tokenizer, served_model_name=self.name,
                            llm=LlmRegistration(context_length=self.context, kv_cache_block_size=BLOCK))

    async def watch(self):
        """A worker without a server leaves, so that nobody is sent to it."""
        failures = 0
        while failures < 3:
            await asyncio.sleep(1)
            try:
                async with self.session.get(self.url + "/health", timeout=aiohttp.ClientTimeout(total=5)) as reply:
                    failures = 0 if reply.status in (200, 503) else failures + 1  # 503: it leaves, and says the rest of its answers
            except (aiohttp.ClientError, asyncio.TimeoutError):
                failures += 1
        print(f"{self.url} does not answer: this worker leaves", file=sys.stderr, flush=True)
        self.leave()

    def leave(self):
        os.kill(os.getpid(), signal.SIGTERM)

    async def kv_event_sources(self):
        return [ZmqSource(endpoint=self.events["address"], topic=self.events["topic"])] if self.events else []

    async def generate(self, request, context):
        body = body_of(request, self.served, self.context)
        usage, reason = None, None
        try:
            async with self.session.post(self.url + "/v1/completions", json=body) as reply:
                if reply.status != 200:
                    problem = (await reply.json())["error"]["message"]
                    raise (InvalidArgument if reply.status < 429 else WorkerUnavailable)(problem)
                async for line in reply.content:
                    if context.is_stopped():  # leaving closes the connection, and the server forgets the request
                        yield {"token_ids": [], "index": 0, "finish_reason": "cancelled"}
                        return
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise EngineShutdown(event["error"]["message"])
                    usage = event.get("usage") or usage
                    for choice in event["choices"]:
                        reason = choice["finish_reason"] or reason
                        if choice.get("token_ids"):
                            yield {"token_ids": choice["token_ids"], "index": 0}
        except aiohttp.ClientConnectorError as problem:
            raise CannotConnect(str(problem)) from None
        except aiohttp.ClientError as problem:  # it died: Dynamo asks another worker to go on from the tokens that it has
            raise EngineShutdown(str(problem)) from None
        if reason is None:
            raise EngineShutdown("the server's answer broke off")
        yield {"token_ids": [], "index": 0, "finish_reason": reason,
               "completion_usage": {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details")}}

    async def cleanup(self):
        if self.session:
            self.watcher.cancel()
            await self.session.close()
            self.session = None


async def main():
    engine, config = await QuireEngine.from_args()
    await Worker(engine, config).run()


if __name__ == "__main__":
    import uvloop
    uvloop.run(main())
