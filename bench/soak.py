#!/usr/bin/env python3
"""Asks a server of its own for some minutes and watches its memory: it must not grow once all pages have been used.

    python3 bench/soak.py --quire build/release/quire --minutes 10 [--clients 8] [-- options of quire serve]
"""
import argparse
import http.client
import json
import random
import subprocess
import threading
import time


def resident_kb(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def client(port, seed, until, counts):
    dice = random.Random(seed)
    shared = "Once there was a fox who kept a book of all the stories it had heard. " * 12
    while time.time() < until:
        prompt = (shared if dice.random() < 0.5 else "") + " ".join(str(dice.randrange(10000)) for _ in range(dice.randrange(5, 300)))
        body = {"prompt": prompt, "max_tokens": dice.randrange(1, 60), "stream": dice.random() < 0.7, "temperature": 1,
                "seed": dice.randrange(1 << 30), "n": dice.choice([1, 1, 1, 2])}
        if dice.random() < 0.2:
            body["quire"] = {"kv_keep": "50%", "kv_policy": dice.choice(["snap", "streaming", "zip"])}
        try:
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            link.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            reply = link.getresponse()
            if dice.random() < 0.1:
                reply.read(40)  # and leaves
                counts["left"] += 1
            else:
                text = reply.read()
                counts["good" if reply.status == 200 and text else f"status {reply.status}"] += 1
            link.close()
        except OSError as problem:
            counts[f"failed: {problem}"] += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default="build/release/quire")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("serve", nargs="*")
    given = parser.parse_args()
    server = subprocess.Popen([given.quire, "serve", "--port", "0", *given.serve], stderr=subprocess.PIPE, text=True)
    try:
        line = server.stderr.readline()
        port = int(line.split("127.0.0.1:")[1].split()[0].rstrip("/"))
        threading.Thread(target=server.stderr.read, daemon=True).start()
        until = time.time() + 60 * given.minutes
        from collections import Counter
        counts = Counter()
        threads = [threading.Thread(target=client, args=(port, i, until, counts)) for i in range(given.clients)]
        for thread in threads:
            thread.start()
        begin = time.time()
        print("seconds  resident MB  answers", flush=True)
        while time.time() < until:
            time.sleep(min(30, max(1, until - time.time())))
            print(f"{time.time() - begin:7.0f}  {resident_kb(server.pid) / 1024:11.1f}  {dict(counts)}", flush=True)
        for thread in threads:
            thread.join()
    finally:
        server.terminate()
        print("the server ended with", server.wait(60))


if __name__ == "__main__":
    main()
