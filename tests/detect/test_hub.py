"""Detectors on a hub: one on this machine that answers the few requests of the Hub's library."""

import base64
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import wildood

PROGRAM = Path(__file__).parents[1] / "programs" / "hub.py"
TOKEN = "hf_" + "s" * 34


class Hub:
    """Repositories as lists of commits, each a dict of files; and what was asked."""

    def __init__(self):
        self.commits = defaultdict(list)
        self.created, self.asked, self.tokens = [], [], set()

    def commit(self, repo, files):
        self.commits[repo].append((sha1(json.dumps([len(self.commits[repo]), repo]).encode()).hexdigest(), files))  # noqa: S324
        return self.commits[repo][-1][0]

    def at(self, repo, revision):
        found = [each for each in self.commits[repo] if revision in {"main", each[0]}]
        return found[-1] if found else None


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, content, status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self):
        self.answer({"error": "not found"}, 404, X_Error_Code="RepoNotFound")

    def do_POST(self):
        hub, body = self.server.hub, self.rfile.read(int(self.headers["Content-Length"]))
        hub.asked.append(f"POST {self.path}")
        hub.tokens.add(self.headers["Authorization"])
        here = f"http://{self.headers['Host']}"
        if self.path == "/api/repos/create":
            content = json.loads(body)
            repo = f"{content['organization']}/{content['name']}" if content.get("organization") else content["name"]
            if repo == "user/forbidden":
                self.answer({"error": "You don't have the rights"}, 403)
                return
            status = 409 if hub.created and hub.created[-1]["name"] == content["name"] else 200
            hub.created.append(content)
            self.answer({"url": f"{here}/{repo}", "error": "exists"}, status)
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif match := re.fullmatch(r"/api/models/(\w+/\w+)/commit/main", self.path):
            lines = [json.loads(line) for line in body.splitlines()]
            files = dict(hub.at(match[1], "main")[1]) if hub.commits[match[1]] else {}
            for line in lines:
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del files[line["value"]["path"]]
            commit = hub.commit(match[1], files)
            self.answer({"commitUrl": f"{here}/{match[1]}/commit/{commit}", "commitOid": commit, "success": True})
        else:
            self.missing()

    def do_GET(self):
        hub, path = self.server.hub, self.path.partition("?")[0]
        hub.asked.append(f"{self.command} {path}")
        if (match := re.fullmatch(r"/api/models/(\w+/\w+)/tree/(\w+)", path)) and match[1] in {"user/name", "user/edited"}:
            _, files = hub.at(match[1], match[2]) or ("", {})
            self.answer([{"type": "file", "path": name, "size": len(each), "oid": "0" * 40} for name, each in files.items()])
        elif (match := re.fullmatch(r"/(\w+/\w+)/resolve/(\w+)/([\w.-]+)", path)) and hub.at(*match.groups()[:2]):
            commit, files = hub.at(match[1], match[2])
            if match[3] not in files:
                self.answer({}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
                return
            etag = f'"{sha1(files[match[3]]).hexdigest()}"'  # noqa: S324
            self.answer(files[match[3]], ETag=etag, X_Repo_Commit=commit)
        else:
            self.missing()

    do_HEAD = do_GET  # noqa: N815


@pytest.fixture
def hub(tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.hub = Hub()
        thread = Thread(target=server.serve_forever)
        thread.start()
        server.hub.address = f"http://127.0.0.1:{server.server_port}"
        yield server.hub
        server.shutdown()
        thread.join()


def on_the_hub(hub, place):
    """What the program says; in a process of its own, because the Hub's library reads HF_ENDPOINT once."""
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {"HF_ENDPOINT": hub.address, "HF_HOME": str(place / "hf"), "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0"}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, PROGRAM], env=environment, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_detectors_are_pushed_in_one_commit_each_and_loaded_again(hub, tmp_path):
    hub.commit("user/empty", {"README.md": b"nothing here"})
    hub.commit("user/edited", {"README.md": b"---\nlibrary_name: wildood\nlicense: mit\n---\n# Mine\n"})
    hub.commit("user/forged", {"detector.json": b'{"digest": 1}', "weights-00.safetensors": b"", "evil.pkl": b"cos\nsystem"})
    said = on_the_hub(hub, tmp_path)
    (_, first), (_, second) = hub.commits["user/name"]
    assert said["addresses"] == [f"hf://user/name@{commit}" for commit, _ in hub.commits["user/name"]]
    assert (said["latest"], said["pinned"]) == (True, [True, True])
    assert said["tokenizers"] == [True, True]
    assert "tokenizer.json" in first
    for files in (first, second):
        own = {name.partition("-")[0] for name in files}
        assert own - {"tokenizer.json"} == {"README.md", "detector.json", "weights"}
        assert files["README.md"].startswith(b"---\nlibrary_name: wildood\n")
    assert first["README.md"] != second["README.md"]
    assert said["edited"] is True
    (_, edited), (_, later) = hub.commits["user/edited"]
    assert later["README.md"] == edited["README.md"] == b"---\nlibrary_name: wildood\nlicense: mit\n---\n# Mine\n"
    assert later["detector.json"] == second["detector.json"]
    assert first.keys() != second.keys()  # the weights of the first one are gone
    assert hub.created[0].get("private", hub.created[0].get("visibility")) in {True, "private"}  # older and newer libraries
    assert {"private", "visibility"}.isdisjoint(hub.created[1])
    asked = {line.partition(" ")[2].rpartition("/")[2] for line in hub.asked if "/resolve/" in line}
    assert {name.partition("-")[0] for name in asked} == {
        "detector.json",
        "weights",
        "tokenizer.json",
        "README.md",
    }  # no other file is read
    assert said["forged"].startswith("DetectorFileError: ")
    assert said["forged"].endswith("detector.json was changed after it was written: save the detector again")
    parts = {
        "no such": "hf://user/other: RepositoryNotFoundError",
        "no detector": "hf://user/empty: ",
        "forbidden": "hf://user/forbidden: HfHubHTTPError",
    }
    for name, part in parts.items():
        assert said[name].startswith(f"DetectorFileError: {part}")
        assert said[name].endswith("check the name, the network and the login (hf auth login, or HF_TOKEN)")
        assert "\n" not in said[name]
    assert hub.tokens == {f"Bearer {TOKEN}"}
    stored = [content for commits in hub.commits.values() for _, files in commits for content in files.values()]
    assert not any(TOKEN.encode() in content for content in (*stored, json.dumps(said).encode()))


@pytest.mark.parametrize("address", ["hf://", "hf://name", "hf://a/b/c", "hf://user/name@", "hf://a b/c"])
def test_an_address_that_names_no_repository_is_refused(address):
    with pytest.raises(
        wildood.InputError, match=r"names no repository of the Hub: give hf://user/name, or hf://user/name@rev"
    ):
        wildood.load(address)


def test_without_the_hubs_library_one_line_says_what_to_install(woods, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for action in (lambda: wildood.load("hf://user/name"), lambda: woods.push_to_hub("user/name")):
        with pytest.raises(
            wildood.InputError, match=r"needs the package huggingface_hub \(.*\): pip install 'wildood\[hf\]'$"
        ):
            action()
