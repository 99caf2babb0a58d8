"""Servers without a key beside each other, for the tests of what stands before several."""
import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"it did not happen within {seconds} seconds")
        time.sleep(0.05)


def get(url):
    with urllib.request.urlopen(url) as reply:
        return reply.read().decode()


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def status(url):
    """Of a GET: 0 if nobody answers."""
    try:
        with urllib.request.urlopen(url) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


class Replica:
    """The program on a port that was free, until it is killed."""

    def __init__(self, program, *options):
        self.process = subprocess.Popen([program, "serve", "--port", "0", *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        found = re.search(r"http://\S+:\d+", line)
        if not found:
            self.kill()
            raise RuntimeError("quire serve did not start: " + line)
        self.url = found[0]

    def events(self):
        """Where it tells what is cached."""
        return json.loads(get(self.url + "/server_info"))["kv_events"]

    def cached(self, prompt):
        return post(self.url + "/kv/lookup", {"prompt": prompt})["cached_tokens"]

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
