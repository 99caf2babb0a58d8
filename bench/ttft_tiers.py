#!/usr/bin/env python3
"""Time to the first token of one long prefix: computed, from memory, from the disk tier, and after a restart.

    bench/ttft_tiers.py -m MODEL [--tokens 8000] [--quire build/release/quire] > bench/results/ttft_tiers.md

Runs `quire serve` with room for little more than one such prefix, asks over HTTP, and prints a table. Each way is
asked `--rounds` times; every answer must be the same.
"""
import argparse
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request


class Server:
    def __init__(self, args, folder, *options):
        command = [args.quire, "serve", "-m", args.model, "--port", "0", "--max-seqs", "2", "--ctx",
                   str(args.tokens + 64), "--kv-memory", args.kv_memory, "--threads", str(args.threads), "--kv-dir", folder,
                   "--kv-disk", args.kv_disk, "--request-seconds", "3600", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said = []
        for line in self.process.stderr:
            self.said.append(line.rstrip())
            if found := re.search(r"http://([^ ]+)", line):
                self.url = "http://" + found[1]
                break
        else:
            sys.exit("quire serve did not start:\n" + "\n".join(self.said))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        rest = self.process.stderr.read()
        self.said += rest.splitlines()
        self.process.wait()

    def post(self, path, body):
        ask = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(ask) as reply:
            return json.load(reply)

    def get(self, path):
        with urllib.request.urlopen(self.url + path) as reply:
            return json.load(reply)

    def answer(self, prompt):
        reply = self.post("/v1/completions", {"prompt": prompt, "max_tokens": 2, "temperature": 0, "quire": True,
                                              "ignore_eos": True, "logprobs": 1})
        report = reply["quire"]
        return {"ttft_ms": report["timings"]["ttft_ms"], "disk_ms": report["timings"]["disk_ms"],
                "cached": report["cache"]["cached_tokens"], "disk": report["cache"]["disk_tokens"],
                "words": (reply["choices"][0]["text"], reply["choices"][0]["logprobs"]["token_logprobs"])}


def leave_system_cache(path):
    """So that the file is read from the disk and not from the system's memory. Of this file alone."""
    file = os.open(path, os.O_RDONLY)
    os.fdatasync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def tier_file(process, kv_folder):
    """The file has no name, but the process has it open."""
    folder = f"/proc/{process.pid}/fd"
    inside = os.path.realpath(kv_folder) + "/"
    return next(f"{folder}/{fd}" for fd in os.listdir(folder) if os.readlink(f"{folder}/{fd}").startswith(inside))


def measure(args):
    rows = {}
    words = set()
    random.seed(1)
    prompts = [[random.randrange(10, args.vocab) for _ in range(args.tokens)] for _ in range(2)]

    def note(way, answer):
        rows.setdefault(way, []).append(answer)
        words.add(json.dumps(answer["words"]))
        print(f"{way}: {answer}", file=sys.stderr)

    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        with Server(args, folder) as server:
            note("computed", server.answer(prompts[0]))
            for _ in range(args.rounds):
                note("in memory", server.answer(prompts[0]))
            server.answer(prompts[1])
            # What has just been written is in the system's memory: first from there, then from the disk itself.
            note("disk tier, file cached by the system", server.answer(prompts[0]))
            server.answer(prompts[1])
            leave_system_cache(tier_file(server.process, folder))
            note("disk tier, file not cached", server.answer(prompts[0]))
            disk = server.get("/kv")["disk"]
            saved = server.post("/kv/save", {})
        for cached in (True, False):
            if not cached:
                leave_system_cache(os.path.join(folder, "cache.kv"))
            begin = time.monotonic()
            with Server(args, folder, "--kv-restore") as server:
                started_s = time.monotonic() - begin
                answer = server.answer(prompts[0])
                way = "after a restart, snapshot " + ("cached by the system" if cached else "not cached")
                answer["start_s"] = started_s
                note(way, answer)
    if not all(answer["disk"] > 0 for way, answers in rows.items() if way.startswith("disk") for answer in answers):
        sys.exit("nothing came from the disk: is --kv-memory too large, or reading slower than computing?")
    if len(words) != 1:
        sys.exit(f"the answers differ: {words}")
    return rows, disk, saved


def cpu_name():
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-m", "--model", default="house")
    parser.add_argument("--quire", default="build/release/quire")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--vocab", type=int, default=2000, help="prompts are random tokens below this")
    parser.add_argument("--kv-memory", required=True, help="room for one prefix and a little more")
    parser.add_argument("--kv-disk", default="4G")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=".", help="where the files are made: on the disk to be measured")
    args = parser.parse_args()
    load = os.getloadavg()
    rows, disk, saved = measure(args)
    print(f"`bench/ttft_tiers.py -m {os.path.basename(args.model)} --tokens {args.tokens} --kv-memory {args.kv_memory}"
          f" --threads {args.threads}` on {cpu_name()}, {os.cpu_count()} CPUs; load average {load[0]:.1f} before,"
          f" {os.getloadavg()[0]:.1f} after.\n")
    print("| the prefix is | first token, ms | of it waiting for the disk, ms | cached tokens | of them from the disk |"
          " server ready after, s |\n|---|---|---|---|---|---|")
    for way, answers in rows.items():
        middle = sorted(answers, key=lambda answer: answer["ttft_ms"])[len(answers) // 2]
        start = f"{middle['start_s']:.2f}" if "start_s" in middle else ""
        print(f"| {way} | {statistics.median(a['ttft_ms'] for a in answers):.0f} | {middle['disk_ms']:.0f} |"
              f" {middle['cached']} | {middle['disk']} | {start} |")
    print(f"\nThe tier wrote {disk['written_pages']} pages, read {disk['read_pages']} at {disk['read_gb_s']:.2f} GB/s"
          f" (dropped {disk['dropped_pages']}, failed {disk['failed_writes'] + disk['failed_reads']}); the snapshot has"
          f" {saved['bytes'] / 1e6:.0f} MB. All answers and their log-probabilities were the same.")


if __name__ == "__main__":
    main()
