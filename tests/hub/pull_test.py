#!/usr/bin/env python3
"""Runs `quire pull`, `list`, `remove` and `-m hf:...` against a hub of our own (mock_hub.py) that fails in every way a hub can.

  python3 tests/hub/pull_test.py --quire build/release/quire [TEST...]
"""
import argparse
import hashlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from mock_hub import MockHub, git_sha1, status_fault

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests/goldens/llama3"
QUIRE = None
NAME = "org/tiny"


def random_bytes(count, seed):
    return random.Random(seed).randbytes(count)


class PullTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="quire_pull_"))
        self.cache = self.folder / "hub"
        self.hub = MockHub()
        self.content = random_bytes(300_000, 1)
        self.commit = self.hub.add(NAME, {
            "README.md": b"a model", ".gitattributes": b"* text", "config.json": b"{}",
            "tiny-Q4_K_M.gguf": self.content, "tiny-Q8_0.gguf": random_bytes(500_000, 2), "mmproj-F16.gguf": random_bytes(5000, 3),
        })
        self.repo = self.cache / "models--org--tiny"
        self.digest = hashlib.sha256(self.content).hexdigest()

    def tearDown(self):
        self.hub.close()
        shutil.rmtree(self.folder)

    def environment(self, more=None):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING", "XDG_", "OLLAMA"))
                       and "proxy" not in key.lower() and "CA_BUNDLE" not in key}
        environment |= {"HOME": str(self.folder), "HF_HOME": str(self.folder), "HF_ENDPOINT": self.hub.endpoint, "NO_PROXY": "*"}
        return environment | (more or {})

    def start(self, *arguments, env=None, **more):
        return subprocess.Popen([QUIRE, *arguments], env=self.environment(env), cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)

    def quire(self, *arguments, code=0, env=None, **more):
        process = self.start(*arguments, env=env, **more)
        process.out, process.err = process.communicate()
        self.assertEqual(process.returncode, code, process.err)
        return process

    def pull(self, name=f"hf:{NAME}", **more):
        return self.quire("pull", name, **more)

    def refused(self, *words, name=f"hf:{NAME}", **more):
        said = self.pull(name, code=1, **more).err
        for word in words:
            self.assertIn(word, said)
        return said

    def check_whole(self):
        path = self.repo / "snapshots" / self.commit / "tiny-Q4_K_M.gguf"
        self.assertEqual(path.read_bytes(), self.content)
        self.assertEqual(os.readlink(path), f"../../blobs/{self.digest}")
        self.assertEqual((self.repo / "refs/main").read_text(), self.commit)
        self.assertEqual([file.name for file in self.repo.glob("blobs/*.incomplete")], [])
        return path

    # What goes well

    def test_puts_the_usual_type_into_the_shared_layout_and_says_why(self):
        done = self.pull()
        self.assertEqual(done.out.strip(), str(self.check_whole()))
        self.assertIn("Q4_K_M, 300 kB, the usual choice; there are also Q8_0 (500 kB)", done.err)
        self.assertEqual([file.name for file in self.repo.glob("blobs/*")], [self.digest])
        self.assertTrue((self.cache / ".locks/models--org--tiny" / f"{self.digest}.lock").exists())

    def test_pulls_again_without_fetching_again(self):
        self.pull()
        self.hub.log.clear()
        self.pull()
        self.assertEqual(len(self.hub.requests("cdn")), 0)

    def test_a_type_or_a_file_can_be_named_and_a_wrong_one_is_told_what_there_is(self):
        self.assertTrue(self.pull(f"{NAME}:q8_0").out.strip().endswith("tiny-Q8_0.gguf"))
        self.assertTrue(self.pull(f"hf:{NAME}@{self.commit}:tiny-Q4_K_M.gguf").out.strip().endswith("tiny-Q4_K_M.gguf"))
        self.refused("has no Q5_K_M; it has Q4_K_M (300 kB), Q8_0 (500 kB)", name=f"hf:{NAME}:Q5_K_M")
        self.refused("has no revision other", name=f"hf:{NAME}@other")
        self.refused("there is no model org/none", name="hf:org/none")
        for name in ("hf:../x", "hf:org/..", "hf:org/a@../b", "hf:org/a:../../b", "hf:a/b/c", "hf:-x/y"):
            self.assertIn(name, self.pull(name, code=2).err)

    def test_the_token_goes_to_the_hub_alone(self):
        self.pull(env={"HF_TOKEN": "hf_right"})
        self.assertTrue(all(headers.get("Authorization") == "Bearer hf_right" for _, _, headers in self.hub.requests("hub")))
        self.assertEqual([headers for _, _, headers in self.hub.requests("cdn") if "Authorization" in headers], [])
        self.assertEqual(len(self.hub.requests("cdn")), 1)

    def test_the_token_may_be_in_its_file(self):
        self.hub.gated.add(NAME)
        self.refused("agreed to its terms")
        (self.folder / "token").write_text("hf_right\n")
        self.pull()

    def test_an_old_token_is_named(self):
        self.refused("does not take the token of HF_TOKEN: it may have expired", env={"HF_TOKEN": "hf_old"})
        self.refused("what HF_TOKEN holds is not a token", env={"HF_TOKEN": "hf_a\r\nX: y"})

    def test_a_split_model_is_fetched_whole(self):
        parts = {f"q/big-Q4_K_M-0000{i}-of-00003.gguf": random_bytes(2000 + i, i) for i in (1, 2, 3)}
        self.hub.add("org/split", parts | {"half-Q4_0-00001-of-00002.gguf": b"x" * 2000})
        first = pathlib.Path(self.pull("hf:org/split").out.strip())
        self.assertEqual(first.name, "big-Q4_K_M-00001-of-00003.gguf")
        for name, content in parts.items():
            self.assertEqual((first.parent.parent / name).read_bytes(), content)

    def test_of_a_folder_what_the_index_names_and_what_it_is_read_with(self):
        shards = {f"model-0000{i}-of-00002.safetensors": random_bytes(3000, i) for i in (1, 2)}
        index = json.dumps({"weight_map": {f"t{i}": name for i, name in enumerate(shards)}}).encode()
        self.hub.add("org/folder", shards | {
            "model.safetensors.index.json": index, "config.json": b"{}", "tokenizer.json": b"{}", "pytorch_model.bin": b"p" * 9000,
            "consolidated.safetensors": b"c" * 9000, "other.safetensors": b"o" * 9000, "onnx/model.safetensors": b"n" * 9000})
        folder = pathlib.Path(self.pull("hf:org/folder").out.strip())
        self.assertEqual(sorted(file.name for file in folder.iterdir()),
                         sorted([*shards, "model.safetensors.index.json", "config.json", "tokenizer.json"]))
        self.assertEqual((folder / "config.json").resolve().name, git_sha1(b"{}"))

    # What is cut, killed, changed

    def test_what_is_cut_goes_on_where_it_was_cut(self):
        self.hub.cut_after = 110_000
        self.pull()
        self.check_whole()
        ranges = [headers.get("Range") for _, _, headers in self.hub.requests("cdn")]
        self.assertEqual(ranges, [None, "bytes=110000-", "bytes=220000-"])

    def test_a_killed_pull_goes_on_the_next_time(self):
        self.hub.piece = 1000
        for byte in (1, 1000, 150_000, 299_000):
            with self.subTest(byte=byte):
                shutil.rmtree(self.repo, ignore_errors=True)
                process = self.start("pull", f"hf:{NAME}")
                partial = self.repo / "blobs" / f"{self.digest}.incomplete"

                def kill(sent, process=process, partial=partial, byte=byte):
                    if sent < byte:
                        return
                    for _ in range(200):  # what was sent may be on its way yet
                        if partial.exists() and partial.stat().st_size >= min(byte, sent) - 1000:
                            break
                        time.sleep(0.005)
                    process.send_signal(signal.SIGKILL)
                    process.wait()

                self.hub.on_piece = kill
                process.communicate()
                self.assertEqual(process.returncode, -signal.SIGKILL)
                self.hub.on_piece = None
                there = partial.stat().st_size if partial.exists() else 0
                self.assertLess(there, len(self.content))
                self.hub.log.clear()
                self.pull()
                self.check_whole()
                if there:
                    self.assertEqual(self.hub.requests("cdn")[0][2].get("Range"), f"bytes={there}-")

    def test_a_hub_without_ranges_sends_all_of_it_again(self):
        self.hub.ranges = False
        (self.repo / "blobs").mkdir(parents=True)
        (self.repo / "blobs" / f"{self.digest}.incomplete").write_bytes(self.content[:5000])
        self.pull()
        self.check_whole()

    def test_what_is_not_what_was_promised_is_refused_and_gone(self):
        self.hub.swap[self.digest] = b"y" + self.content[1:]
        self.refused("tiny-Q4_K_M.gguf is not what the hub promises")
        self.assertEqual(list(self.repo.glob("blobs/*")), [])
        self.assertEqual(list(self.repo.glob("snapshots/*/*")), [])
        self.assertFalse((self.repo / "refs/main").exists())

    def test_so_is_a_small_file_by_gits_hash(self):
        self.hub.add("org/small", {"config.json": b'{"a": 1}', "model.safetensors": b"w" * 2000})
        repo = self.hub.repos["org/small"]
        repo.files["config.json"] = b'{"a": 2}'
        self.refused("config.json is not what the hub promises", name="hf:org/small")

    def test_foreign_bytes_in_a_partial_file_are_found_and_fetched_again(self):
        (self.repo / "blobs").mkdir(parents=True)
        (self.repo / "blobs" / f"{self.digest}.incomplete").write_bytes(b"z" * 5000)
        self.assertIn("what was here of it before does not belong to it", self.pull().err)
        self.check_whole()

    def test_a_body_without_end_is_ended(self):
        self.hub.endless = True
        self.refused("sends more than the 300 kB")

    # Disks

    def test_a_disk_that_takes_no_more_keeps_what_it_took(self):
        limit = 100_000
        self.refused("cannot write", "File too large",
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assertEqual((self.repo / "blobs" / f"{self.digest}.incomplete").stat().st_size, limit)
        self.hub.log.clear()
        self.pull()
        self.check_whole()
        self.assertEqual(self.hub.requests("cdn")[0][2]["Range"], f"bytes={limit}-")

    def test_room_is_looked_for_before_anything_is_fetched(self):
        entry = {"type": "file", "oid": "0" * 40, "path": "huge-Q4_K_M.gguf", "size": 1 << 49,
                 "lfs": {"oid": "1" * 64, "size": 1 << 49}}
        self.hub.tree = [entry]
        self.refused("nothing of org/tiny fits into this machine's")
        self.refused("wants 563 TB more on the disk of", name=f"hf:{NAME}:Q4_K_M")
        self.assertEqual(self.hub.requests("cdn"), [])

    def test_of_two_pulls_at_once_one_fetches_and_the_other_waits(self):
        self.hub.piece = 10_000
        begun = threading.Event()

        def slow(_sent):
            begun.set()
            time.sleep(0.03)

        self.hub.on_piece = slow
        first = self.start("pull", f"hf:{NAME}")
        begun.wait(60)
        second = self.pull()
        first.communicate()
        self.assertEqual(first.returncode, 0)
        self.assertIn("tiny-Q4_K_M.gguf is being fetched by another program; waiting for it", second.err)
        self.assertEqual(len(self.hub.requests("cdn")), 1)
        self.check_whole()

    # Hubs that fail

    def test_troubles_that_pass_are_tried_again(self):
        self.hub.faults = [status_fault(500, Retry_After="0"), status_fault(429, Retry_After="0"), lambda *_: False,
                           status_fault(503, Retry_After="0")]
        said = self.pull().err
        self.assertEqual(said.count("trying again"), 3)
        self.check_whole()

    def test_troubles_that_stay_are_told(self):
        self.hub.faults = [status_fault(503, Retry_After="0")] * 20
        self.refused("answers with status 503; tried 5 times")
        self.hub.faults = [status_fault(429, Retry_After="86400")]
        self.refused("too many requests (429), and asks to wait for 86400 seconds")
        self.refused("'ftp://x'", env={"HF_ENDPOINT": "ftp://x"})

    def test_redirects_go_to_http_alone_and_not_on_and_on(self):
        for target in ("file:///etc/passwd", "ftp://127.0.0.1/x", "http://user:word@127.0.0.1/x"):
            self.hub.redirect_to = target
            self.refused("where quire does not go")
        self.hub.redirect_to = f"{self.hub.endpoint}/{NAME}/resolve/{self.commit}/tiny-Q4_K_M.gguf"
        self.refused("sends us on and on")

    def test_over_tls_certificates_are_checked_and_nothing_leads_back_to_http(self):
        key = self.folder / "hub.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=hub",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", self.folder / "ca.pem"], check=True, capture_output=True)
        key.write_text(key.read_text() + (self.folder / "ca.pem").read_text())
        self.hub.close()
        self.hub = MockHub(certificate=key)
        self.hub.add("org/small", {"small-Q4_0.gguf": b"s" * 500})
        self.hub.add(NAME, {"tiny-Q4_K_M.gguf": self.content})
        self.refused("certificate", name="hf:org/small")
        known = {"SSL_CERT_FILE": str(self.folder / "ca.pem")}
        self.pull("hf:org/small", env=known)
        self.refused("where quire does not go: 'http://127.0.0.1", env=known)
        self.assertEqual(self.hub.requests("cdn"), [])

    def test_hostile_names_are_never_files(self):
        def entries(*paths):
            return [{"type": "file", "path": path, "oid": "0" * 40, "size": len(self.content), "lfs": {"oid": self.digest, "size": len(self.content)}}
                    for path in paths]

        hostile = ["../../../../evil-Q4_0.gguf", "/tmp/evil-Q4_0.gguf", "a/../../evil.gguf", "a\u0000b.gguf", "\u001b[31mred.gguf",
                   "..\\evil.gguf", "a//b.gguf", ".hidden/x.gguf", "x" * 500 + ".gguf", "./x.gguf", "a/.gguf"]
        self.hub.tree = entries(*hostile)
        before = sorted(self.folder.rglob("*"))
        said = self.refused("11 of its files were left out")
        self.assertNotIn("\u001b", said)
        self.assertEqual([path for path in self.folder.rglob("*") if path not in before], [])
        self.hub.tree = entries("../evil-Q4_K_M.gguf", "good-Q4_0.gguf")
        self.assertTrue(self.pull().out.strip().endswith("good-Q4_0.gguf"))
        for wrong in ([{"type": "file", "path": "a.gguf", "oid": "../../x", "size": 1}], [{"type": "file", "path": "a.gguf"}], [7],
                      [{"type": "file", "path": "a.gguf", "oid": "0" * 40, "size": -1}]):
            self.hub.tree = wrong
            self.refused("hub")

    def test_a_listing_without_end_is_ended(self):
        def flood(handler, _path):
            handler.send_response(200)
            handler.end_headers()
            handler.close_connection = True
            while True:
                handler.wfile.write(b" " * (1 << 20))

        self.hub.faults = [flood]
        self.refused("more than 33.6 MB, where a list of files should be")

    # Living with it

    def real_models(self):
        """A folder and a GGUF file that quire reads."""
        files = {name: (GOLDEN / name).read_bytes() for name in ("config.json", "tokenizer.json", "tokenizer_config.json")}
        files |= {path.name: path.read_bytes() for path in GOLDEN.glob("*.safetensors")}
        self.hub.add("org/folder", files)
        gguf = self.folder / "real.gguf"
        self.quire("quantize", "-m", str(GOLDEN), "--type", "q8_0", "-o", str(gguf))
        self.hub.add("org/real", {"real-Q8_0.gguf": gguf.read_bytes()})
        return gguf

    def run_model(self, model, *more, **options):
        return self.quire("run", "-m", model, "--raw", "-n", "4", "--temperature", "0", "--device", "cpu", *more, "Hello", **options)

    def test_m_fetches_what_is_not_here_and_then_asks_nobody(self):
        gguf = self.real_models()
        expected = self.run_model(str(gguf)).out
        self.assertIn("--offline or HF_HUB_OFFLINE", self.run_model("hf:org/real", "--offline", code=1).err)
        self.assertEqual(self.run_model("org/real").out, expected)
        self.hub.log.clear()
        self.assertEqual(self.run_model("hf:org/real").out, expected)
        self.assertEqual(self.run_model("hf:org/real:Q8_0", "--offline").out, expected)
        self.assertEqual(self.hub.log, [])
        self.run_model("hf:org/folder")
        self.run_model("hf:org/folder", env={"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"})
        self.assertIn('"name": "folder"', self.quire("inspect", "hf:org/folder", "--json").out)

    def test_list_knows_what_is_here_and_remove_takes_it_away(self):
        gguf = self.real_models()
        self.pull("hf:org/real")
        self.pull("hf:org/folder")
        self.pull()  # of no kind that quire reads
        blob = "sha256-" + hashlib.sha256(gguf.read_bytes()).hexdigest()
        ollama = self.folder / "ollama"
        (ollama / "blobs").mkdir(parents=True)
        (ollama / "blobs" / blob).write_bytes(gguf.read_bytes())
        manifest = ollama / "manifests/registry.ollama.ai/library/tiny/1b"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [
            {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "0" * 64},
            {"mediaType": "application/vnd.ollama.image.model", "digest": blob.replace("-", ":", 1)}]}))
        env = {"OLLAMA_MODELS": str(ollama)}
        entries = json.loads(self.quire("list", "--json", env=env).out)
        self.assertEqual([entry["name"] for entry in entries], ["house", "hf:org/folder", "hf:org/real:Q8_0", "ollama:tiny:1b"])
        self.assertEqual(entries[2]["bytes"], gguf.stat().st_size)
        self.assertIn("1 more model", self.quire("list", env=env).err)
        for entry in entries[1:]:
            self.run_model(entry["name"], "--offline", env=env)
        self.assertIn("ollama:tiny:1b", self.run_model("ollama:other", code=1, env=env).err)
        self.assertIn("that is Ollama's store", self.quire("kv-check", "--remember", "-m", "ollama:tiny:1b", code=1, env=env).err)
        self.quire("remove", "ollama:tiny:1b", "-y", code=2, env=env)
        self.quire("remove", "hf:org/real", code=2)  # nobody can be asked
        self.quire("remove", "house", "-y", code=2)
        self.assertIn("removed hf:org/real", self.quire("remove", "hf:org/real", "-y").err)
        self.assertFalse((self.cache / "models--org--real").exists())
        self.assertFalse((self.cache / ".locks/models--org--real").exists())
        self.assertEqual(len(json.loads(self.quire("list", "--json", env=env).out)), 3)
        self.quire("remove", "hf:org/real", "-y", code=1)

    def test_remove_leaves_what_another_revision_holds(self):
        self.pull()
        old = self.commit
        new = self.hub.add(NAME, {"tiny-Q4_K_M.gguf": self.content, "tiny-Q8_0.gguf": b"8" * 5000})
        self.pull()
        self.pull(f"hf:{NAME}:Q8_0")
        self.quire("remove", f"hf:{NAME}@{old}", "-y")
        self.assertEqual([path.name for path in (self.repo / "snapshots").iterdir()], [new])
        self.assertEqual((self.repo / "snapshots" / new / "tiny-Q4_K_M.gguf").read_bytes(), self.content)
        self.quire("remove", f"hf:{NAME}:Q8_0", "-y")
        self.assertEqual([path.name for path in self.repo.glob("blobs/*")], [self.digest])
        self.quire("remove", f"hf:{NAME}:Q4_K_M", "-y")
        self.assertFalse(self.repo.exists())


def main():
    global QUIRE
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    options, rest = parser.parse_known_args()
    QUIRE = os.path.abspath(options.quire)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=1)


if __name__ == "__main__":
    main()
