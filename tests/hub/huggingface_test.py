#!/usr/bin/env python3
"""What `quire pull` has fetched, Hugging Face's own package finds without a network, and holds the cache for sound; and the other way
round.

Exits with 77 if the package is not there, with 1 if something is wrong.

  python3 tests/hub/huggingface_test.py --quire build/release/quire
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

from mock_hub import MockHub


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    quire = os.path.abspath(parser.parse_args().quire)
    with tempfile.TemporaryDirectory(prefix="quire_hf_") as folder:
        for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "XDG_"))]:
            del os.environ[name]
        os.environ |= {"HF_HOME": folder, "HOME": folder, "NO_PROXY": "*", "HF_HUB_OFFLINE": "1"}
        try:
            import huggingface_hub
        except ImportError:
            print("the Python package huggingface_hub is not there")
            return 77
        check(quire, folder, huggingface_hub)
    print(f"huggingface_hub {huggingface_hub.__version__} and quire share a cache")
    return 0


def check(quire, folder, huggingface_hub):
    hub = MockHub()
    files = {"model-00001-of-00002.gguf": b"1" * 5000, "model-00002-of-00002.gguf": b"2" * 5000}
    folder_files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"w" * 5000}
    commit = hub.add("org/split", {f"q/{name}": content for name, content in files.items()})
    hub.add("org/folder", folder_files)
    env = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0"}

    def run(*arguments, **more):
        done = subprocess.run([quire, *arguments], env=env | more, capture_output=True, text=True, cwd=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    first = run("pull", "hf:org/split")
    run("pull", "hf:org/folder")
    for name, content in files.items():
        path = huggingface_hub.hf_hub_download("org/split", f"q/{name}", local_files_only=True)
        assert pathlib.Path(path).read_bytes() == content
        assert huggingface_hub.try_to_load_from_cache("org/split", f"q/{name}", revision=commit) == path
    assert path.replace("00002-of", "00001-of") == first, (path, first)
    snapshot = pathlib.Path(huggingface_hub.snapshot_download("org/folder", local_files_only=True))
    assert sorted(file.name for file in snapshot.iterdir()) == sorted(folder_files)

    report = huggingface_hub.scan_cache_dir()
    assert not report.warnings, report.warnings
    # Two files with the same bytes are one blob.
    assert {repo.repo_id: repo.size_on_disk for repo in report.repos} == {"org/split": 10_000, "org/folder": 5002}, report
    assert all(set(repo.refs) == {"main"} for repo in report.repos)

    # What their program removes is gone for ours, and what ours removes for theirs.
    run("remove", "hf:org/folder", "-y")
    report = huggingface_hub.scan_cache_dir()
    assert not report.warnings and [repo.repo_id for repo in report.repos] == ["org/split"], report
    report.delete_revisions(commit).execute()
    assert "org/split" not in run("list")
    # A pull that does not get through leaves nothing that either stumbles over.
    hub.redirect_to = "file:///nowhere"
    broken = subprocess.run([quire, "pull", "hf:org/split"], env=env, capture_output=True, text=True, cwd=folder)
    assert broken.returncode == 1 and "where quire does not go" in broken.stderr, broken.stderr
    report = huggingface_hub.scan_cache_dir()
    assert not report.warnings, report.warnings
    hub.redirect_to = None
    assert run("pull", "hf:org/split") == first
    hub.close()


if __name__ == "__main__":
    sys.exit(main())
