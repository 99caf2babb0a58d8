#!/usr/bin/env python3
"""Two servers behind HAProxy, with the configuration of docs/cluster: one leaves while answers run, and nobody is lost.

Exits with 77 if HAProxy is not there, with 1 if something is wrong.

  python3 tests/clients/haproxy_client_test.py --quire build/release/quire
"""
import argparse
import concurrent.futures
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from replicas import Replica, free_port, get, post, status, wait_until

CONFIGURATION = pathlib.Path(__file__).resolve().parents[2] / "docs" / "cluster" / "haproxy.cfg"
PROGRAM = ""
PLACES = "/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin"
REQUESTS = 60


def ask(url, n):
    body = {"prompt": f"Once upon a time, number {n},", "max_tokens": 20, "seed": n, "temperature": 1, "ignore_eos": True}
    return post(url + "/v1/completions", body)["choices"][0]["text"]


class TwoReplicas(unittest.TestCase):
    def setUp(self):
        self.replicas = [Replica(PROGRAM, "--metrics-names", "vllm", "--drain-seconds", "4", "--grace-seconds", "60") for _ in range(2)]
        port = free_port()
        text = CONFIGURATION.read_text().replace(":8000", f":{port}")
        for place, replica in zip((":8081", ":8082"), self.replicas):
            self.addCleanup(replica.kill)
            text = text.replace(place, replica.url[replica.url.rindex(":"):])
        self.file = tempfile.NamedTemporaryFile("w", suffix=".cfg")
        self.addCleanup(self.file.close)
        self.file.write(text)
        self.file.flush()
        process = subprocess.Popen([shutil.which("haproxy", path=PLACES), "-db", "-f", self.file.name], stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.proxy = f"http://127.0.0.1:{port}"
        wait_until(lambda: status(self.proxy + "/health") == 200)

    def answered(self, replica):
        return sum(map(int, re.findall(r"^vllm:request_success_total\S* (\d+)", get(replica.url + "/metrics"), re.M)))

    def test_answers_are_the_same_and_nobody_is_lost_when_one_leaves(self):
        alone = [ask(self.replicas[0].url, n) for n in range(REQUESTS)]
        before = self.answered(self.replicas[0])
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertEqual(alone, list(pool.map(lambda n: ask(self.proxy, n), range(REQUESTS))))
            self.assertGreater(self.answered(self.replicas[0]), before)
            self.assertGreater(self.answered(self.replicas[1]), 0)

            answers = [pool.submit(ask, self.proxy, n) for n in range(REQUESTS)]
            self.replicas[0].process.send_signal(signal.SIGTERM)
            wait_until(lambda: status(self.replicas[0].url + "/health") == 503)
            self.assertEqual(alone, [answer.result() for answer in answers])
            self.assertEqual(self.replicas[0].process.wait(), 0)  # it has ended, and what comes now goes to the other
            self.assertEqual(alone[:8], list(pool.map(lambda n: ask(self.proxy, n), range(8))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    options, rest = parser.parse_known_args()
    if not shutil.which("haproxy", path=PLACES):
        print("skipped: HAProxy is not installed")
        sys.exit(77)
    PROGRAM = options.quire
    unittest.main(argv=[sys.argv[0], *rest])
