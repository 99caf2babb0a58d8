#!/usr/bin/env python3
"""Serves the page of `quire serve` and plays an engine: plausible answers, pages, steps and figures, without a model.

    mock_server.py [--port 8090] [--busy] [--key KEY] [--pages 256] [--token-ms 24]

--busy adds requests of other clients; --key asks for an API key; --port 0 takes any free port. Prints its address when it is ready.
"""
import argparse
import collections
import http.server
import itertools
import json
import random
import re
import socket
import threading
import time
import urllib.parse
from pathlib import Path

WEB = Path(__file__).resolve().parents[2] / "src" / "server" / "web"
SHARE = Path("/usr/share")
LIBRARIES = {"maths": SHARE / "javascript/katex/katex.js", "pdf": SHARE / "javascript/pdf/build/pdf.js"}
TYPES = {".woff2": "font/woff2", ".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGE_TOKENS = 32
LAYERS = ((0, 5), (128, 10))  # window, layers
BYTES_PER_TOKEN_AND_LAYER = 512
MACHINE = {"read_gb_s": 33.1, "int8_gops": 313, "threads": 2}

STORY = """A fox lived at the edge of a wood, where the grass was tall and the wind smelled of apples. \
Every evening she walked to the stream and counted the stars that swam in it.

One night a star was missing. “Who took it?” asked the fox. “Nobody,” said the stream – “a cloud has only turned the page.”

She wrote the sum down as a small program, so as not to forget it:

```
stars = [star for star in sky if not clouded(star)]
print(len(stars), "stars in the stream tonight, and one page of the sky still unread")
```

Then she went home, content: what is `cached` is not lost. 🦊"""
CACHE = """A KV cache is a memory of the keys and values of earlier tokens. Thanks to it, nothing old is computed twice: \
only the new token goes through the model.

Prefill fills the cache with the whole prompt at once; decode adds one row per token. That is why the first token takes \
the longest, and why a long conversation starts quickly when its pages are still there."""

SHOWN = r"""## What a page costs

A *page* holds the keys and values of **32 tokens**. Three things follow:

1. A prompt of $n$ tokens fills $\lceil n / 32 \rceil$ pages.
2. Two prompts that begin alike share pages:
   - the system message,
   - everything up to the first word that differs.
3. ~~Nothing~~ The last page is rarely full.

| format | bytes per token | share |
|:-------|----------------:|------:|
| f16 | 7,680 | 100 % |
| int8 | 4,080 | 53 % |
| q4 | 2,280 | 30 % |

$$
\text{bytes} = 2 \cdot L \cdot h \cdot d \cdot \sum_{i=1}^{n} b_i
$$

```python
def pages(tokens, page_tokens=32):
    # A comment that is long enough to scroll on a phone, because code is never wrapped.
    return -(-tokens // page_tokens)
```

> What is computed once is not computed again.

More in [the documents](https://example.com/kv), and a [link](javascript:alert(1)) that is none."""


def library_file(name):
    """The bytes of what a build of the program takes from Debian's packages, where they are; None if it is not such a file."""
    if name == "libraries.js":
        return f"export const libraries = {json.dumps({key: path.is_file() for key, path in LIBRARIES.items()})};".encode()
    folder = "fonts/truetype/katex" if name.startswith("fonts/") else "javascript/pdf/build" if name.startswith("pdf.") else "javascript/katex"
    path = SHARE / folder / Path(name).name
    known = name in ("katex.js", "katex.min.css", "pdf.js", "pdf.worker.js") or re.fullmatch(r"fonts/KaTeX_[\w-]+\.woff2", name)
    return path.read_bytes() if known and path.is_file() else None


def words(text):
    return re.findall(r"\s*\S+|\s+$", text)


class Request:
    def __init__(self, number, kind, client, tokens, max_tokens, now):
        self.id, self.kind, self.client = f"chatcmpl-{number * 0x9E3779B97F4A7C15 % 2**64:016x}", kind, client
        self.tokens, self.max_tokens, self.prompt_tokens = list(tokens), max_tokens, len(tokens)
        self.state, self.submitted, self.queue, self.ttft = "waiting", now, 0.0, None
        self.cached, self.why = 0, "never seen"
        self.chunks, self.token_at, self.causes = [], [], collections.Counter()
        self.finish_reason, self.finished = None, None
        self.pages = [[] for _ in LAYERS]  # page numbers in order
        self.cancelled, self.log = False, None

    def verdict(self):
        said = []
        if self.cached:
            said.append(f"{self.cached} of {self.prompt_tokens} prompt tokens were found in the cache; {self.why}.")
        elif self.prompt_tokens > 40:
            said.append("The prompt was computed from its first token, because nothing like it had been seen.")
        if self.causes["prefill of another"]:
            said.append(f"{self.causes['prefill of another']} of its tokens came late because another request's prompt was being computed.")
        return said

    def as_json(self):
        return {"id": self.id, "choice": 0, "kind": self.kind, "client": self.client, "state": self.state, "submitted_ms": self.submitted,
                "queue_ms": self.queue, "ttft_ms": self.ttft, "prompt_tokens": self.prompt_tokens, "cached_tokens": self.cached,
                "why": self.why, "answer_tokens": len(self.token_at), "max_tokens": self.max_tokens, "chunks": self.chunks,
                "token_ms": self.token_at[-512:], "gap_causes": dict(self.causes), "finish_reason": self.finish_reason,
                "finished_ms": self.finished, "preemptions": 0, "drafted": 0, "accepted": 0,
                "kv_pages": sum(map(len, self.pages)), "verdict": self.verdict()}


    def steps(self):
        """As GET /requests/ID/steps."""
        passes = [{"phase": "prefill", "at_ms": c["at_ms"], "ms": c["took_ms"], "tokens": c["tokens"], "text": "the prompt",
                   "entries_before": c["entries_before"], "entries_after": c["entries_after"], "draws": 0, "drawn": []} for c in self.chunks]
        answer = self.tokens[self.prompt_tokens:self.prompt_tokens + len(self.token_at)]
        for i, (word, at) in enumerate(zip(answer, self.token_at)):
            if i:
                entries = self.prompt_tokens + i - 1
                passes.append({"phase": "decode", "at_ms": at, "ms": at - self.token_at[i - 1], "tokens": 1, "text": str(answer[i - 1]),
                               "entries_before": entries, "entries_after": entries + 1})
            passes[-1].update(draws=1, drawn=[{"id": i, "text": str(word), "probability": None, "rivals": []}])
        return {"id": self.id, "prompt_tokens": self.prompt_tokens, "cached_tokens": self.cached, "pruned_tokens": 0, "skipped": 0,
                "passes": passes}

    def attention(self, layer, head):
        """As GET /requests/ID/attention: looks at the first token, at the last few and at the same words."""
        tokens = [str(word) for word in self.tokens[:self.prompt_tokens + max(0, len(self.token_at) - 1)]]
        step = max(1, -(-len(tokens) // 256))
        passes = [{"phase": "prefill", "begin": c["entries_before"], "tokens": c["tokens"]} for c in self.chunks]
        passes += [{"phase": "decode", "begin": p, "tokens": 1} for p in range(self.prompt_tokens, len(tokens))]
        rows = []
        for position in range(self.cached, len(tokens)):
            weights = [3.0 * (k == 0) + 2 ** -((position - k) / (1 + head)) + (1 + layer) * (tokens[k] == tokens[position]) for k in range(position + 1)]
            cells = [sum(weights[c:c + step]) / sum(weights) for c in range(0, position + 1, step)]
            if rows and rows[-1]["position"] // step == position // step and position != self.prompt_tokens:
                rows[-1]["tokens"] += 1  # near enough for a play: the others of a row look as its first
                rows[-1]["shares"] += [0.0] * (len(cells) - len(rows[-1]["shares"]))
                continue
            which = next((i for i, p in enumerate(passes) if p["begin"] <= position < p["begin"] + p["tokens"]), len(passes) - 1)
            rows.append({"position": position, "tokens": 1, "pass": which, "shares": [round(cell, 3) for cell in cells]})
        return {"id": self.id, "layer": layer, "layers": 15, "head": head, "heads": 8, "kv_head": head // 4, "kv_heads": 2,
                "sharing": list(range(head // 4 * 4, head // 4 * 4 + 4)), "window": 0, "sinks": False, "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached, "cell_tokens": step, "tokens": tokens, "passes": passes, "rows": rows}


class Engine:
    """All state of the play; every method takes the lock."""

    def __init__(self, pages, token_ms):
        self.lock = threading.RLock()
        self.start = time.monotonic()
        self.capacity, self.token_ms = pages, token_ms
        self.numbers = itertools.count(0x1F)
        self.requests = collections.deque(maxlen=64)
        self.pages = [{} for _ in LAYERS]  # page -> dict
        self.index = [{} for _ in LAYERS]  # tuple of all tokens up to the page's end -> page
        self.events, self.steps, self.pins = [], [], {}
        self.streams = {}  # request id -> Log, of those that can be read again
        self.stirred = 0.0  # until when a prefill holds up the others

    def now(self):
        return (time.monotonic() - self.start) * 1000

    def event(self, kind, group, page, index, request):
        self.events.append({"n": len(self.events), "at_ms": self.now(), "kind": kind, "group": group, "page": page, "index": index,
                            "request": request and request.id})

    def take_page(self, group, index, request):
        pages = self.pages[group]
        number = next((n for n in range(self.capacity) if n not in pages), None)
        if number is None:
            number = min((n for n, p in pages.items() if p["state"] == "cached" and not p["pinned"]), key=lambda n: pages[n]["used"])
            self.event("evicted", group, number, pages[number]["index"], None)
            self.index[group].pop(pages[number]["prefix"], None)
        pages[number] = {"state": "held", "owners": [request.id], "index": index, "tokens": 0, "used": self.now(), "pinned": False, "prefix": None}
        self.event("reserved", group, number, index, request)
        request.pages[group].append(number)
        return number

    def attach(self, request):
        with self.lock:
            found = 0
            while (found + 1) * PAGE_TOKENS < request.prompt_tokens and tuple(request.tokens[:(found + 1) * PAGE_TOKENS]) in self.index[0]:
                prefix = tuple(request.tokens[:(found + 1) * PAGE_TOKENS])
                for group in range(len(LAYERS)):
                    number = self.index[group].get(prefix)
                    if number is None:
                        continue
                    page = self.pages[group][number]
                    page["state"], page["used"] = "held", self.now()
                    page["owners"].append(request.id)
                    request.pages[group].append(number)
                    self.event("shared", group, number, found, request)
                found += 1
            request.cached = found * PAGE_TOKENS
            if found:
                request.why = f"differs at token {request.cached + 5}"

    def fill(self, request, upto):
        """Rows [0, upto) of the request are computed."""
        with self.lock:
            for group, (window, _) in enumerate(LAYERS):
                held = request.pages[group]
                while len(held) * PAGE_TOKENS < upto and (not window or len(held) < 64):
                    self.take_page(group, len(held), request)
                for index, number in enumerate(held):
                    page = self.pages[group].get(number)
                    if not page or request.id not in page["owners"]:
                        continue
                    page["tokens"], page["used"] = max(page["tokens"], min(PAGE_TOKENS, upto - index * PAGE_TOKENS)), self.now()
                    if page["tokens"] == PAGE_TOKENS and page["prefix"] is None:
                        page["prefix"] = tuple(request.tokens[:(index + 1) * PAGE_TOKENS])
                        self.index[group][page["prefix"]] = number
                        self.event("published", group, number, index, request)
                    if window and (index + 1) * PAGE_TOKENS < upto - window:
                        self.release_page(request, group, number)

    def release_page(self, request, group, number):
        page = self.pages[group].get(number)
        if not page or request.id not in page["owners"]:
            return
        page["owners"].remove(request.id)
        self.event("released", group, number, page["index"], request)
        if not page["owners"]:
            if page["prefix"]:
                page["state"] = "cached"
            else:
                del self.pages[group][number]

    def finish(self, request, reason):
        with self.lock:
            for group, held in enumerate(request.pages):
                for number in held:
                    self.release_page(request, group, number)
            request.state, request.finish_reason, request.finished = "finished", reason, self.now()

    def step(self, request, took, prompt, stream):
        streams = sum(r.state == "decode" for r in self.requests)
        gbytes = took / 1000 * MACHINE["read_gb_s"] * (random.uniform(0.55, 0.66) if stream else random.uniform(0.05, 0.09))
        gops = took / 1000 * MACHINE["int8_gops"] * (random.uniform(0.1, 0.16) if stream else random.uniform(0.38, 0.44))
        self.steps.append({"n": len(self.steps), "at_ms": self.now() - took, "ms": took, "runs": max(1, streams), "prompt_tokens": prompt,
                           "stream_tokens": stream * max(1, streams), "draft_tokens": 0, "gops": gops, "gbytes": gbytes,
                           "bound": "memory" if stream else "arithmetic"})

    def submit(self, kind, client, tokens, max_tokens):
        with self.lock:
            request = Request(next(self.numbers), kind, client, tokens, max_tokens, self.now())
            self.requests.appendleft(request)
            return request

    def play(self, request, answer):
        """Yields the words of the answer as they come."""
        try:
            waits = 0.03 + 0.12 * sum(r.state == "prefill" for r in self.requests)
            time.sleep(waits)
            request.queue = self.now() - request.submitted
            self.attach(request)
            request.state = "prefill"
            done = request.cached
            while done < request.prompt_tokens and not request.cancelled:
                chunk = min(128, request.prompt_tokens - done)
                began = self.now()
                self.stirred = began + chunk * 2
                time.sleep(chunk * 0.002 + 0.02)
                done += chunk
                self.fill(request, done)
                request.chunks.append({"at_ms": began, "took_ms": self.now() - began, "tokens": chunk,
                                       "entries_before": done - chunk, "entries_after": done})
                self.step(request, self.now() - began, chunk, 0)
            request.state = "decode"
            for number, word in enumerate(answer):
                if request.cancelled or number >= request.max_tokens:
                    break
                held_up = self.stirred > self.now()
                took = self.token_ms * random.uniform(0.9, 1.15) * (2.4 if held_up else 1)
                if number:
                    time.sleep(took / 1000)
                    request.causes["prefill of another" if held_up else "none"] += 1
                    self.step(request, took, 0, 1)
                request.token_at.append(self.now())
                if request.ttft is None:
                    request.ttft = self.now() - request.submitted
                request.tokens.append(word)
                self.fill(request, len(request.tokens))
                yield word
            reason = "cancelled" if request.cancelled else "length" if len(request.token_at) >= request.max_tokens else "stop"
            self.finish(request, reason)
        finally:
            if request.finished is None:
                self.finish(request, "cancelled")

    def kv(self, since):
        with self.lock:
            groups, held_bytes, cached_bytes, shared_bytes, rows, filled = [], 0, 0, 0, 0, 0
            now = self.now()
            for (window, layers), pages in zip(LAYERS, self.pages):
                page_bytes = PAGE_TOKENS * layers * BYTES_PER_TOKEN_AND_LAYER
                listed = [{"page": n, "state": p["state"], "shares": len(p["owners"]), "requests": p["owners"], "index": p["index"],
                           "tokens": p["tokens"], "age_ms": now - p["used"], "pinned": p["pinned"]} for n, p in sorted(pages.items())]
                held = [p for p in listed if p["state"] == "held"]
                held_bytes += len(held) * page_bytes
                cached_bytes += (len(listed) - len(held)) * page_bytes
                shared_bytes += sum(p["shares"] - 1 for p in held) * page_bytes
                rows += len(held) * PAGE_TOKENS
                filled += sum(p["tokens"] for p in held)
                groups.append({"window": window, "layers": layers, "page_bytes": page_bytes, "pages": self.capacity, "held": len(held),
                               "cached": len(listed) - len(held), "free": self.capacity - len(listed), "map": listed})
            return {"now_ms": now, "page_tokens": PAGE_TOKENS, "capacity_bytes": sum(g["pages"] * g["page_bytes"] for g in groups),
                    "held_bytes": held_bytes, "cached_bytes": cached_bytes, "shared_bytes": shared_bytes,
                    "unused_share": 1 - filled / rows if rows else 0, "format": "f16",
                    "bytes_per_token": sum(layers for _, layers in LAYERS) * BYTES_PER_TOKEN_AND_LAYER, "groups": groups,
                    "pins": [{"pin": pin, "tokens": tokens} for pin, tokens in self.pins.items()],
                    "events": {"total": len(self.events), "counts": dict(collections.Counter(e["kind"] for e in self.events)),
                               "last": self.events[since:][-512:]}}

    def status(self, since):
        with self.lock:
            now = self.now()
            recent = [s for s in self.steps[-400:] if s["at_ms"] > now - 1000]
            busy = sum(s["ms"] for s in recent) / 1000 or 1
            bandwidth = sum(s["gbytes"] for s in recent) / busy / MACHINE["read_gb_s"]
            arithmetic = sum(s["gops"] for s in recent) / busy / MACHINE["int8_gops"]
            return {"now_ms": now, "running": sum(r.state in ("prefill", "decode") for r in self.requests),
                    "waiting": sum(r.state == "waiting" for r in self.requests), "requests": [r.as_json() for r in self.requests],
                    "steps": {"total": len(self.steps), "last": self.steps[since:][-512:]}, "machine": MACHINE,
                    "rates": {"answer_tok_s": sum(r.token_at[i] > now - 1000 for r in self.requests for i in range(len(r.token_at))),
                              "prompt_tok_s": sum(s["prompt_tokens"] for s in recent), "bandwidth_share": bandwidth,
                              "arithmetic_share": arithmetic,
                              "bound": "neither" if not recent else "memory" if bandwidth > arithmetic else "arithmetic"}}

    def lookup(self, tokens):
        with self.lock:
            found = 0
            while (found + 1) * PAGE_TOKENS < len(tokens) and tuple(tokens[:(found + 1) * PAGE_TOKENS]) in self.index[0]:
                found += 1
            cached = found * PAGE_TOKENS
            return {"prompt_tokens": len(tokens), "cached_tokens": cached, "computed_tokens": len(tokens) - cached,
                    "why": f"differs at token {cached + 5}" if cached else "never seen", "diverges_at": cached + 5 if cached else None,
                    "diverges_text": "", "predicted_ttft_ms": 50 + 2 * (len(tokens) - cached)}

    def pin(self, tokens):
        with self.lock:
            pin = max(self.pins, default=0) + 1
            pages = 0
            while (prefix := tuple(tokens[:(pages + 1) * PAGE_TOKENS])) in self.index[0]:
                for group in range(len(LAYERS)):
                    if prefix in self.index[group]:
                        self.pages[group][self.index[group][prefix]]["pinned"] = True
                pages += 1
            self.pins[pin] = pages * PAGE_TOKENS
            return {"pin": pin, "tokens": pages * PAGE_TOKENS}

    def unpin(self, pin):
        with self.lock:
            self.pins.pop(pin, None)
            for pages in self.pages:
                for page in pages.values():
                    page["pinned"] = False


def prompt_of(body):
    messages = body.get("messages") or [{"role": "user", "content": body.get("prompt", "")}]
    preamble = words("You are a small model that tells short stories and explains how inference works. " * 6)
    return preamble + [word for m in messages for word in [f"<{m['role']}>", *words(m["content"]), "</>"]]


def others(engine):
    """Clients besides the page: some ask about the same document."""
    document = words("The quick brown fox jumps over the lazy dog while seven wizards box quietly. " * 22)
    for number in itertools.count():
        tokens = document[:random.choice((120, 250, 280))] + words(f"question {number} of {random.random()}")
        request = engine.submit("completion", random.choice(("batch", "notebook")), tokens, random.randint(60, 260))
        threading.Thread(target=lambda r=request: collections.deque(engine.play(r, itertools.cycle(words(STORY))), 0), daemon=True).start()
        time.sleep(random.uniform(0.6, 3.0))


class Log:
    """What a stream has said so far, for any number of readers."""

    def __init__(self):
        self.said, self.ended, self.more = [], False, threading.Condition()

    def add(self, data):
        with self.more:
            self.said.append(data)
            self.ended = data == "[DONE]"
            self.more.notify_all()

    def __iter__(self):
        for number in itertools.count():
            with self.more:
                self.more.wait_for(lambda: self.ended or len(self.said) > number)
                if number >= len(self.said):
                    return
                data = self.said[number]
            yield data


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine, key = None, None

    def log_message(self, *_):
        pass

    def answer(self, value, status=200, type="application/json"):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", "default-src 'self'")
        self.end_headers()
        self.wfile.write(body)

    def fail(self, status, message):
        self.answer({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}, status)

    def allowed(self):
        if self.key and self.headers.get("Authorization") != f"Bearer {self.key}":
            self.fail(401, "This server wants an API key.")
            return False
        return True

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        since, layer, head = (int(query.get(name, ["0"])[0]) for name in ("since", "layer", "head"))
        file = WEB / (url.path[1:] or "index.html")
        if file.suffix in TYPES and file.parent == WEB and file.is_file():
            return self.answer(file.read_bytes(), type=TYPES[file.suffix])
        library = library_file(url.path[1:])
        if library is not None:
            return self.answer(library, type=TYPES[Path(url.path).suffix])
        if not self.allowed():
            return None
        routes = {"/v1/models": lambda: {"object": "list", "data": [{"id": "house", "object": "model", "created": 1, "owned_by": "quire", "max_model_len": 4096}]},
                  "/version": lambda: {"version": "0.1.0"}, "/kv": lambda: self.engine.kv(since), "/requests": lambda: self.engine.status(since)}
        for request in self.engine.requests:
            routes[f"/requests/{request.id}/steps"] = request.steps
            routes[f"/requests/{request.id}/attention"] = lambda request=request: request.attention(layer, head)
        log = self.engine.streams.get(url.path.removeprefix("/v1/stream/"))
        if log:
            return self.send_log(log)
        if url.path not in routes:
            return self.fail(404, f"There is nothing at {url.path}.")
        return self.answer(routes[url.path]())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return None
        if self.path == "/kv/lookup":
            return self.answer(self.engine.lookup(prompt_of(body)))
        if self.path == "/kv/pin":
            return self.answer(self.engine.pin(prompt_of(body)))
        if self.path == "/v1/chat/completions":
            return self.stream(body)
        return self.fail(404, f"There is nothing at {self.path}.")

    def do_DELETE(self):
        if not self.allowed():
            return None
        if self.path.startswith("/kv/pin/"):
            self.engine.unpin(int(self.path.rsplit("/", 1)[1]))
        for request in self.engine.requests:
            if self.path == f"/requests/{request.id}":
                request.cancelled = True
        return self.answer({})

    def stream(self, body):
        question = body["messages"][-1]["content"]
        if "fail" in question:
            return self.fail(400, "the prompt has 9000 tokens, but the model's context has room for 4096")
        answer = words(CACHE if "cache" in question.lower() else STORY)
        if "markdown" in question.lower():
            answer = words(SHOWN)
        if "long" in question:
            answer = itertools.islice(itertools.cycle([*answer, "\n\n"]), 3000)
        call = None
        if body.get("tool_choice") == "required":
            call, answer = {"name": body["tools"][0]["function"]["name"], "arguments": '{"zone": "CET"}'}, []
        request = self.engine.submit("chat", "page", prompt_of(body), body.get("max_tokens", 4000))
        log = Log()
        if body.get("quire", {}).get("resume"):
            self.engine.streams[request.id] = log
        threading.Thread(target=self.produce, args=(request, answer, log, call), daemon=True).start()
        self.send_log(log)
        return None

    def produce(self, request, answer, log, call=None):
        self.chunk(log, request, delta={"role": "assistant", "content": ""})
        for word in self.engine.play(request, answer):
            self.chunk(log, request, delta={"content": word})
        if call:
            self.chunk(log, request, delta={"reasoning_content": "They ask for the time."})
            self.chunk(log, request, delta={"tool_calls": [{"index": 0, "id": "call_1", "type": "function",
                                                            "function": {"name": call["name"], "arguments": ""}}]})
            for piece in (call["arguments"][:5], call["arguments"][5:]):
                self.chunk(log, request, delta={"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        self.chunk(log, request, finish="tool_calls" if call else request.finish_reason)
        log.add(json.dumps(self.last_chunk(request)))
        log.add("[DONE]")

    def send_log(self, log):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for data in log:
                self.send_data(data)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            for request in self.engine.requests:
                if self.engine.streams.get(request.id) is None and request.log is log:
                    request.cancelled = True

    def chunk(self, log, request, delta=None, finish=None):
        request.log = log
        log.add(json.dumps({"id": request.id, "object": "chat.completion.chunk", "created": 1, "model": "house", "usage": None,
                            "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}]}, ensure_ascii=False))

    def send_data(self, data):
        """Cut at a random byte, inside characters too, as a network may."""
        message = f"data: {data}\n\n".encode()
        cut = random.randrange(1, len(message))
        for piece in (message[:cut], message[cut:]):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()

    def last_chunk(self, request):
        gaps = sorted(b - a for a, b in zip(request.token_at, request.token_at[1:])) or [0.0]
        pages = sum(map(len, request.pages))
        return {"id": request.id, "object": "chat.completion.chunk", "created": 1, "model": "house", "choices": [],
                "usage": {"prompt_tokens": request.prompt_tokens, "completion_tokens": len(request.token_at),
                          "total_tokens": request.prompt_tokens + len(request.token_at), "prompt_tokens_details": {"cached_tokens": request.cached}},
                "quire": {"id": request.id, "timings": {"queue_ms": request.queue, "ttft_ms": request.ttft, "itl_ms_p50": gaps[len(gaps) // 2],
                                                        "itl_ms_p99": gaps[len(gaps) * 99 // 100], "prefill_tok_s": 480.0,
                                                        "decode_tok_s": 1000 / (gaps[len(gaps) // 2] or 1)},
                          "cache": {"cached_tokens": request.cached, "computed_tokens": request.prompt_tokens - request.cached, "why": request.why},
                          "kv": {"pages": pages, "bytes": pages * 122880}, "verdict": request.verdict()}}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.connections = []

    def process_request(self, request, client_address):
        self.connections.append(request)
        super().process_request(request, client_address)

    def go_away(self):
        """As a program that was ended: nobody listens, and what was open is cut."""
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed long ago

    def handle_error(self, *_):
        pass  # a client that left


def start(port=0, key=None, pages=256, token_ms=24, busy=False):
    """Returns a server that answers on a thread of its own; server.server_port says where."""
    engine = Engine(pages, token_ms)
    handler = type("MockHandler", (Handler,), {"engine": engine, "key": key})
    server = Server(("127.0.0.1", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if busy:
        threading.Thread(target=others, args=(engine,), daemon=True).start()
    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--key")
    parser.add_argument("--pages", type=int, default=256)
    parser.add_argument("--token-ms", type=float, default=24)
    options = parser.parse_args()
    server = start(**vars(options))
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
