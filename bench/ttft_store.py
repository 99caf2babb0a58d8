#!/usr/bin/env python3
"""Time to the first token of one long prefix that another server has computed: from a Redis that both share, over loopback and over links of
given rates.

    bench/ttft_store.py -m MODEL [--tokens 8000] [--quire build/release/quire] [--rates 1gbit,10gbit]

For each way two servers run, one after the other: the first computes and sends, the second begins empty and is asked. Rates need root: the
Redis then runs in a network namespace of its own, behind a pair of veth that `tc tbf` slows. Every answer must be the same.
"""
import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

SPACE, OURS, THEIRS = "quire-bench", "10.199.0.1", "10.199.0.2"


def run(*command):
    subprocess.run(command, check=True)


class Link:
    """A link of a rate to a network namespace, until it is closed."""

    def __init__(self, rate):
        self.close()
        run("ip", "netns", "add", SPACE)
        run("ip", "link", "add", "qbench0", "type", "veth", "peer", "name", "qbench1", "netns", SPACE)
        run("ip", "addr", "add", OURS + "/24", "dev", "qbench0")
        run("ip", "link", "set", "qbench0", "up")
        inside = ["ip", "netns", "exec", SPACE]
        run(*inside, "ip", "addr", "add", THEIRS + "/24", "dev", "qbench1")
        run(*inside, "ip", "link", "set", "qbench1", "up")
        for prefix, device in (([], "qbench0"), (inside, "qbench1")):
            run(*prefix, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "1mb", "latency", "100ms")

    @staticmethod
    def close():
        subprocess.run(["ip", "netns", "del", SPACE], stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", "qbench0"], stderr=subprocess.DEVNULL)


class Redis:
    def __init__(self, folder, way):
        self.socket = os.path.join(folder, "redis.sock")
        self.link = Link(way) if way.endswith("bit") else None
        inside = ["ip", "netns", "exec", SPACE] if self.link else []
        where = THEIRS if self.link else "127.0.0.1"
        self.port = 26379
        self.process = subprocess.Popen([*inside, "redis-server", "--port", str(self.port), "--bind", where, "--protected-mode", "no",
                                         "--unixsocket", self.socket, "--save", "", "--appendonly", "no"], stdout=subprocess.DEVNULL)
        self.url = f"redis+unix://{self.socket}" if way == "unix socket" else f"redis://{where}:{self.port}/0"
        time.sleep(1)

    def close(self):
        self.process.kill()
        self.process.wait()
        if self.link:
            self.link.close()


class Server:
    def __init__(self, args, *options):
        self.process = subprocess.Popen(
            [args.quire, "serve", "-m", args.model, "--port", "0", "--max-seqs", "2", "--ctx", str(args.tokens + 64), "--threads", str(args.threads),
             "--request-seconds", "3600", "--kv-remote-queue", "2G", *options], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"http://([^ ]+)", line):
                self.url = "http://" + found[1]
                return
        sys.exit("quire serve did not start")

    def post(self, path, body):
        ask = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(ask) as reply:
            return json.load(reply)

    def remote(self):
        with urllib.request.urlopen(self.url + "/kv") as reply:
            return json.load(reply)["remote"]

    def answer(self, prompt):
        reply = self.post("/v1/completions", {"prompt": prompt, "max_tokens": 2, "temperature": 0, "quire": True, "ignore_eos": True,
                                              "logprobs": 1})
        report = reply["quire"]
        return {"ttft_ms": report["timings"]["ttft_ms"], "remote_ms": report["timings"]["remote_ms"],
                "cached": report["cache"]["cached_tokens"], "remote": report["cache"]["remote_tokens"], "store": report["cache"]["store"],
                "words": json.dumps((reply["choices"][0]["text"], reply["choices"][0]["logprobs"]["token_logprobs"]))}

    def close(self):
        self.process.terminate()
        self.process.stderr.read()
        self.process.wait()


def measure(args, note):
    random.seed(1)
    prompt = [random.randrange(10, args.vocab) for _ in range(args.tokens)]
    first = True
    for way in [*args.ways.split(","), *filter(None, args.rates.split(","))]:
        with tempfile.TemporaryDirectory() as folder:
            redis = Redis(folder, way)
            try:
                one = Server(args, "--kv-remote", redis.url)
                answer = one.answer(prompt)
                if first:
                    note("computed", answer)
                    note("in memory", one.answer(prompt))
                first = False
                begin = time.monotonic()
                while one.remote()["queued_bytes"] > 0:
                    time.sleep(0.01)
                sent_s = time.monotonic() - begin
                sent = one.remote()
                one.close()
                for _ in range(args.rounds):
                    other = Server(args, "--kv-remote", redis.url)
                    answer = other.answer(prompt)
                    answer["sent_s"], answer["gb_s"] = sent_s, other.remote()["read_gb_s"]
                    answer["bytes"] = sent
                    note("store, " + way, answer)
                    other.close()
            finally:
                redis.close()


def cpu_name():
    with open("/proc/cpuinfo") as file:
        return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-m", "--model", default="house")
    parser.add_argument("--quire", default="build/release/quire")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--vocab", type=int, default=2000, help="prompts are random tokens below this")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="unix socket,loopback")
    parser.add_argument("--rates", default="", help="such as 1gbit,10gbit; needs root")
    args = parser.parse_args()
    load = os.getloadavg()
    rows = {}

    def note(way, answer):
        rows.setdefault(way, []).append(answer)
        print(f"{way}: {answer}", file=sys.stderr)

    measure(args, note)
    if len({answer["words"] for answers in rows.values() for answer in answers}) != 1:
        sys.exit("the answers differ")
    print(f"`bench/ttft_store.py -m {os.path.basename(args.model)} --tokens {args.tokens} --threads {args.threads} --rates {args.rates}` on {cpu_name()},"
          f" {os.cpu_count()} CPUs; load average {load[0]:.1f} before, {os.getloadavg()[0]:.1f} after.\n")
    print("| the prefix is | first token, ms | of it waiting for the store, ms | cached tokens | of them from the store | read at, GB/s |\n"
          "|---|---|---|---|---|---|")
    for way, answers in rows.items():
        middle = sorted(answers, key=lambda answer: answer["ttft_ms"])[len(answers) // 2]
        rate = f"{middle['gb_s']:.2f}" if "gb_s" in middle else ""
        print(f"| {way} | {statistics.median(a['ttft_ms'] for a in answers):.0f} | {middle['remote_ms']:.0f} | {middle['cached']} |"
              f" {middle['remote']} | {rate} |")
    print("\nAll answers and their log-probabilities were the same.")


if __name__ == "__main__":
    main()
