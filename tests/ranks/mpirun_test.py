#!/usr/bin/env python3
"""Several processes that mpirun has started compute one model, and say what one process says.

Exits with 77 if mpirun is not installed, with 1 if something is wrong.

  python3 tests/ranks/mpirun_test.py --quire build/release/quire
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

PROGRAM = ""
GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "goldens"
UNEVEN = ""  # a model with three KV heads
TEXT = "The cache keeps the keys and values of every token, and a page holds thirty-two of them. "
SECONDS = 180  # for anything: the machine may be busy


def mpirun(count, *command):
    # Over this machine's memory and its loopback alone.
    settings = {"btl_vader_single_copy_mechanism": "none", "pml": "ob1", "btl": "self,vader", "oob_tcp_if_include": "lo"}
    return ["mpirun", "--oversubscribe", "--bind-to", "none", *(word for name, value in settings.items() for word in ("--mca", name, value)),
            "-n", str(count), *command]


def environment():
    own = dict(os.environ)
    if os.geteuid() == 0:
        own.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return own


def ran(count, *options):
    command = [PROGRAM, *options]
    return subprocess.run(command if count == 1 else mpirun(count, *command), env=environment(), capture_output=True, text=True,
                          timeout=SECONDS, stdin=subprocess.DEVNULL)


def answered(count, *options):
    done = ran(count, "run", "--json", "--raw", "--logprobs", "--ignore-eos", "--threads", "1", *options)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)  # which is one object: nobody but rank 0 has printed
    return answer["token_ids"], answer["logprobs"]


class Server:
    def __init__(self, count, *options):
        command = [PROGRAM, "serve", "--port", "0", "--threads", "1", *options]
        self.process = subprocess.Popen(command if count == 1 else mpirun(count, *command), env=environment(), text=True,
                                        stderr=subprocess.PIPE, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.said, self.url, self.ready = [], None, threading.Event()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        assert self.ready.wait(SECONDS) and self.url, "".join(self.said)

    def read(self):
        for line in self.process.stderr:
            self.said.append(line)
            found = re.search(r"at (http://[^ ]+)", line)
            if found:
                self.url = found.group(1)
                self.ready.set()
        self.ready.set()

    def ranks(self):
        """The process ids by rank."""
        found = {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                own = dict(item.split("=", 1) for item in (folder / "environ").read_text().split("\0") if "=" in item)
                command = (folder / "cmdline").read_text().split("\0")
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError):
                continue
            if parent == self.process.pid and "serve" in command and "OMPI_COMM_WORLD_RANK" in own:
                found[int(own["OMPI_COMM_WORLD_RANK"])] = int(folder.name)
        return found

    def ask(self, body):
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=SECONDS) as reply:
            return json.loads(reply.read())

    def end(self):
        """However it ended: nothing of it is left."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(SECONDS)
        self.reader.join(SECONDS)
        self.process.stderr.close()
        self.process.stdout.close()


def said(answer):
    return [(choice["text"], choice["logprobs"]["token_logprobs"]) for choice in answer["choices"]]


def all_at_once(server, bodies):
    answers = [None] * len(bodies)

    def ask(i):
        answers[i] = said(server.ask(bodies[i]))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


class SeveralProcesses(unittest.TestCase):
    def test_one_answer_is_the_same_from_two_processes(self):
        for options in ([], ["--kv", "int8"], ["--kv", "k=int8,v=q4"], ["--draft", "lookup"], ["--prefill-chunk", "7"]):
            ask = ["-n", "24", "--temperature", "0", *options, TEXT * 3]
            self.assertEqual(answered(2, *ask), answered(1, *ask), options)
        ask = ["-n", "24", "--temperature", "1", "--seed", "5", TEXT]
        self.assertEqual(answered(2, *ask), answered(1, *ask))

    def test_three_heads_are_divided_among_two_and_three(self):
        ask = ["-m", UNEVEN, "-n", "8", "--temperature", "0", TEXT]
        alone = answered(1, *ask)
        for count in (2, 3):
            self.assertEqual(answered(count, *ask), alone, f"{count} processes")

    def test_what_is_not_divided_is_refused_in_a_sentence(self):
        done = ran(3, "run", "-n", "4", TEXT)
        self.assertIn("layer 0 has 2 KV heads, which 3 ranks cannot divide", done.stderr)
        self.assertEqual((done.stdout, done.stderr.count("KV heads")), ("", 1))
        self.assertNotEqual(done.returncode, 0)
        for options in (["--kv-keep", "50%"], ["--kv-budget", "256"], ["--save-kv", "/nowhere"], ["--draft", "mtp"], ["--kv", "auto"]):
            done = ran(2, "run", "-n", "4", *options, TEXT)
            self.assertIn("ranks divide yet", done.stderr, options)
            self.assertNotEqual(done.returncode, 0)
        # What rank 0 finds when the others have loaded their parts, or are about to.
        for options, words in ((["--ctx", "16"], "the context holds 16"), (["--memory", "8M"], "--memory 8M is too little")):
            done = ran(2, "run", "-n", "4", *options, TEXT * 3)
            self.assertIn(words, done.stderr)
            self.assertNotEqual(done.returncode, 0)
        done = ran(2, "serve", "--port", "0", "--kv-dir", "/tmp")
        self.assertIn("--kv-dir is not for a model that ranks divide yet", done.stderr)

    def test_ranks_with_other_models_are_told_apart(self):
        command = mpirun(1, PROGRAM, "run", "-n", "4", TEXT) + [":", "-n", "1", PROGRAM, "run", "-m", UNEVEN, "-n", "4", TEXT]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
        self.assertIn("is not the model that rank 0 has", done.stderr)
        self.assertNotEqual(done.returncode, 0)

    def test_a_server_of_two_answers_many_as_a_server_of_one(self):
        bodies = [{"prompt": TEXT * (1 + i % 3) + f"Number {i}:", "max_tokens": 12 + i, "temperature": i % 2, "seed": i, "logprobs": 1,
                   "n": 1 + (i == 3)} for i in range(6)]
        answers = []
        for count in (1, 2):
            server = Server(count, "--max-seqs", "4")
            try:
                answers.append([all_at_once(server, bodies), all_at_once(server, bodies[::-1])])
                usage = server.ask({**bodies[2], "quire": True})["usage"]
                self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 32)
                if count == 2:
                    ranks = server.ranks()
                    self.assertEqual(sorted(ranks), [0, 1])
                    with self.assertRaises(urllib.error.HTTPError) as refused:
                        server.ask({**bodies[0], "quire": {"kv_keep": "50%"}})
                    self.assertEqual(refused.exception.code, 400)
                    os.kill(ranks[0], signal.SIGTERM)
                    self.assertEqual(server.process.wait(SECONDS), 0, "".join(server.said))
            finally:
                server.end()
        self.assertEqual(answers[0], answers[1])
        self.assertIn("gathers", "".join(server.said))

    def test_a_rank_that_is_killed_ends_the_others(self):
        for rank in (1, 0):
            server = Server(2)
            try:
                ranks = server.ranks()
                stream = threading.Thread(target=self.ask_in_vain, args=(server,))
                stream.start()
                time.sleep(0.3)
                os.kill(ranks[rank], signal.SIGKILL)
                self.assertNotEqual(server.process.wait(SECONDS), 0)
                stream.join(SECONDS)
                deadline = time.monotonic() + 30
                while any(pathlib.Path(f"/proc/{pid}").exists() for pid in ranks.values()) and time.monotonic() < deadline:
                    time.sleep(0.1)
                self.assertFalse([pid for pid in ranks.values() if pathlib.Path(f"/proc/{pid}").exists()])
                self.assertRegex("".join(server.said), r"rank \d.*signal 9")
            finally:
                server.end()

    @staticmethod
    def ask_in_vain(server):
        try:
            server.ask({"prompt": TEXT, "max_tokens": 2000, "ignore_eos": True, "quire": True})
        except OSError:
            pass

    def test_the_plan_counts_what_is_gathered(self):
        plan = json.loads(ran(1, "inspect", "house", "--ranks", "2", "--json").stdout)
        self.assertEqual((plan["ranks"], len(plan["memory"]), plan["gathers"]), (2, 2, 7 * 4 + 1))
        whole = json.loads(ran(1, "inspect", "house", "--json").stdout)
        self.assertEqual(2 * plan["kv"]["bytes_per_token"], whole["kv"]["bytes_per_token"])
        speeds = [network["most_tokens_s"] for network in plan["networks"]]
        self.assertEqual(speeds, sorted(speeds, reverse=True))
        tokens = 9
        done = ran(2, "run", "--raw", "--ignore-eos", "--temperature", "0", "--threads", "1", "-n", str(tokens), "A")
        found = re.search(r"\[2 ranks: (\d+) gathers of ([\d.]+) kB", done.stderr)
        self.assertEqual(int(found[1]), tokens * plan["gathers"], done.stderr)
        # A prompt of some tokens, of which one has logits, and then one token after the other.
        read = int(re.search(r"\[(\d+) prompt", done.stderr)[1]) + tokens - 1
        expected = (read * plan["received_bytes_per_token"] + tokens * plan["received_bytes_per_logits"]) / int(found[1])
        self.assertAlmostEqual(float(found[2]) * 1000, expected, delta=60)
        self.assertIn("recurrent", ran(1, "inspect", str(GOLDENS / "qwen3_5"), "--ranks", "2").stderr)

    def test_who_is_started_alone_has_nothing_of_mpi(self):
        server = Server(1)
        try:
            self.assertNotIn("libmpi", pathlib.Path(f"/proc/{server.process.pid}/maps").read_text())
        finally:
            server.end()


def main():
    global PROGRAM, UNEVEN
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    known, rest = parser.parse_known_args()
    PROGRAM = os.path.abspath(known.quire)
    if shutil.which("mpirun") is None:
        print("mpirun is not installed (openmpi-bin)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        UNEVEN = os.path.join(folder, "uneven.gguf")
        subprocess.run([PROGRAM, "synth", "--shape", "smollm-135m", "--type", "q4_0", "-o", UNEVEN], check=True, capture_output=True)
        done = unittest.main(argv=[sys.argv[0], *rest], exit=False)
    return 0 if done.result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
