#!/usr/bin/env python3
"""What a router is worth to a cache: conversations over two replicas, by several routers, with a store that both share and without.

    bench/routers.py -m MODEL [--quire build/release/quire] [--talks 16] [--turns 6] [--rounds 2] [--together 4]

Every talk begins with the same 200 words or so, then says something of its own at each turn and is answered with 24 tokens. Talks come in
waves of `--together`; a turn is sent when the one before is answered and its talk's place in the wave comes. The routers: HAProxy in turn,
SGLang's gateway (smg, cache_aware), and what Dynamo's KV router chooses by, which hears the replicas' events. Said are the share of all
prompts' tokens that was cached, the time to the first token, and how many answers differ from those of one server alone: there must be none.

haproxy and redis-server are Debian's; smg and ai-dynamo-runtime are PyPI's: what is missing is left out.
"""
import argparse
import asyncio
import concurrent.futures
import http.client
import importlib.util
import itertools
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "clients"))
from replicas import Replica, free_port, get, post, status, wait_until

WORDS = "the fox and a hare went over hills to see what lay behind them when winter came with snow upon every field".split()


def words(seed, n):
    source = random.Random(seed)
    return " ".join(source.choice(WORDS) for _ in range(n))


def stream(url, messages):
    """One answer: its text, seconds to the first of it, prompt tokens and those of them that were cached."""
    place = urllib.parse.urlparse(url)
    connection = http.client.HTTPConnection(place.hostname, place.port)
    body = {"model": "house", "messages": messages, "max_tokens": 24, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 200, (reply.status, reply.read())
    text, first, usage = "", None, None
    for line in reply:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            piece = choice["delta"].get("content") or ""
            if piece and first is None:
                first = time.perf_counter() - began
            text += piece
    connection.close()
    return text, first or time.perf_counter() - began, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


class InTurn:
    """HAProxy, round robin."""
    name = "HAProxy, in turn"
    there = shutil.which("haproxy", path="/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin")

    def __init__(self, replicas, folder):
        self.url = f"http://127.0.0.1:{free_port()}"
        servers = "\n".join(f"  server s{n} {replica.url[7:]}" for n, replica in enumerate(replicas))
        file = os.path.join(folder, "haproxy.cfg")
        pathlib.Path(file).write_text("defaults\n mode http\n timeout connect 2s\n timeout client 10m\n timeout server 10m\n"
                                      f"frontend f\n bind {self.url[7:]}\n default_backend b\nbackend b\n balance roundrobin\n{servers}\n")
        self.process = subprocess.Popen([self.there, "-db", "-f", file], stderr=subprocess.DEVNULL)
        wait_until(lambda: status(self.url + "/health") == 200)

    def where(self, messages):
        return self.url

    def close(self):
        self.process.kill()
        self.process.wait()


class Gateway(InTurn):
    """It remembers what it sent where."""
    name = "smg, cache_aware"
    there = shutil.which("smg") or shutil.which("smg", path=os.path.dirname(sys.executable))

    def __init__(self, replicas, folder):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen([self.there, "launch", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()),
                                         "--policy", "cache_aware", "--worker-urls", *(replica.url for replica in replicas)],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: status(self.url + "/health") == 200
                   and sum(worker["is_healthy"] for worker in json.loads(get(self.url + "/workers"))["workers"]) == 2)


class Dynamo:
    """It hears what is cached where. Tokens come from a replica, as Dynamo's frontend would make them itself."""
    name = "Dynamo's KV router"
    there = importlib.util.find_spec("dynamo")

    def __init__(self, replicas, folder):
        from dynamo.llm import SelectionService
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.urls, self.number = [replica.url for replica in replicas], itertools.count()
        self.booked = threading.local()

        async def begin():
            self.service = SelectionService(indexer_threads=1)
            for number, replica in enumerate(replicas):
                places = replica.events()
                await self.service.upsert_worker({"worker_id": number, "model_name": "house", "block_size": 32, "endpoint": replica.url,
                                                  "kv_events_endpoints": {0: places["address"]}, "replay_endpoint": places["replay_address"]})
        self.wait(begin())

    def wait(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def where(self, messages):
        tokens = post(self.urls[next(self.number) % 2] + "/tokenize", {"messages": messages})["tokens"]
        booked = self.booked.id = f"r{next(self.number)}"

        async def choose():
            return await self.service.select_and_reserve({"model_name": "house", "token_ids": tokens, "selection_id": booked})
        return self.wait(choose())["endpoint"]

    def done(self):
        booked = self.booked.id

        async def free():
            await self.service.free_reservation(booked)
        self.wait(free())

    def close(self):
        self.service.shutdown()
        self.loop.call_soon_threadsafe(self.loop.stop)


def talk(router, n, turns, seen, lock):
    messages, texts = [{"role": "system", "content": words(0, 200)}], []
    for turn in range(turns):
        messages.append({"role": "user", "content": words(f"{n} {turn}", 40)})
        answer = stream(router.where(messages), messages)
        if hasattr(router, "done"):
            router.done()
        with lock:
            seen.append(answer[1:])
        texts.append(answer[0])
        messages.append({"role": "assistant", "content": answer[0]})
    return texts


def run(args, router, replicas, folder):
    """All talks: answers, seconds to the first tokens, and the share that was cached."""
    chosen = router(replicas, folder)
    seen, lock = [], threading.Lock()
    with concurrent.futures.ThreadPoolExecutor(args.together) as pool:
        texts = list(pool.map(lambda n: talk(chosen, n, args.turns, seen, lock), range(args.talks)))
    chosen.close()
    firsts = sorted(first for first, _, _ in seen)
    return texts, firsts, sum(cached for _, _, cached in seen) / sum(asked for _, asked, _ in seen)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model")
    parser.add_argument("--quire", default="build/release/quire")
    parser.add_argument("--talks", type=int, default=16)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--together", type=int, default=4)
    parser.add_argument("--kv-memory", default="24M", help="of each replica: too little for all talks, enough for those that are told at once")
    args = parser.parse_args()
    os.environ.setdefault("DYN_LOG", "off")

    class Alone:
        name = "one server"

        def __init__(self, replicas, folder):
            self.url = replicas[0].url

        def where(self, messages):
            return self.url

        def close(self):
            pass

    routers = [router for router in (InTurn, Gateway, Dynamo) if router.there]
    model = ["-m", args.model] if args.model else []
    events = ["--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*"]
    rows, wanted = {}, None
    for _ in range(args.rounds):
        for router, store in [(Alone, False), *itertools.product(routers, (False, True))]:
            with tempfile.TemporaryDirectory(prefix="quire_routers_") as folder:
                options, redis = ["--model-name", "house", "--threads", "1", "--max-seqs", str(args.together), "--kv-memory", args.kv_memory, *events], None
                if store:
                    place = os.path.join(folder, "s")
                    redis = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", place, "--save", "", "--appendonly", "no", "--dir", folder],
                                             stdout=subprocess.DEVNULL)
                    wait_until(lambda: os.path.exists(place))
                    options += ["--kv-remote", f"redis+unix://{place}"]
                replicas = [Replica(args.quire, *model, "--grace-seconds", "0", *options) for _ in range(1 if router is Alone else 2)]
                texts, firsts, share = run(args, router, replicas, folder)
                for replica in replicas:
                    replica.kill()
                if redis:
                    redis.kill()
                    redis.wait()
            wanted = wanted or texts
            different = sum(a != b for one, other in zip(texts, wanted) for a, b in zip(one, other))
            rows.setdefault((router.name, store), []).append((share, firsts, different))
            print(f"{router.name}{', with a store' if store else ''}: {100 * share:.1f} % cached, first token p50 {1000 * statistics.median(firsts):.0f} ms, "
                  f"{different} answers differ", file=sys.stderr, flush=True)
    print("| | cached | first token p50, ms | p90, ms | answers that differ |\n|---|---|---|---|---|")
    for (name, store), rounds in rows.items():
        firsts = sorted(itertools.chain.from_iterable(firsts for _, firsts, _ in rounds))
        print(f"| {name}{', with a store' if store else ''} | {100 * statistics.mean(share for share, _, _ in rounds):.1f} % "
              f"| {1000 * statistics.median(firsts):.0f} | {1000 * firsts[int(0.9 * len(firsts))]:.0f} | {sum(different for _, _, different in rounds)} |")


if __name__ == "__main__":
    main()
