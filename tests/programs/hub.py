"""Push two detectors to the hub of HF_ENDPOINT, load both again, and print what is said about wrong addresses."""

import json
import sys
from hashlib import sha256

import numpy as np
import torch

import wildood

x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
torch.manual_seed(0)


def build():
    return torch.nn.Sequential(torch.nn.Linear(4, 3))


def same(address, detector):
    return bool(np.array_equal(wildood.load(address, model=build).score(x), detector.score(x)))


def refusal(action, *arguments, **settings):
    try:
        action(*arguments, **settings)
    except wildood.WildoodError as error:
        return f"{type(error).__name__}: {error}"


first, second = (wildood.posthoc(build(), wildood.EnergyScore(), holdout=x) for _ in range(2))
first.tokenizer = b"{}"
first.record["text"] = {"column": "text", "label_column": None, "tokenizer": sha256(first.tokenizer).hexdigest()}
addresses = [first.push_to_hub("user/name", private=True), second.push_to_hub("hf://user/name", message="The second")]
said = {
    "addresses": addresses,
    "latest": same("hf://user/name", second),
    "pinned": [same(address, each) for address, each in zip(addresses, (first, second), strict=True)],
    "tokenizers": [
        wildood.load(address, model=build).tokenizer == each.tokenizer
        for address, each in zip(addresses, (first, second), strict=True)
    ],
    "edited": same(second.push_to_hub("user/edited"), second),
    "no such": refusal(wildood.load, "hf://user/other"),
    "no detector": refusal(wildood.load, "hf://user/empty"),
    "forged": refusal(wildood.load, "hf://user/forged", model=build),
    "forbidden": refusal(first.push_to_hub, "user/forbidden"),
}
sys.stdout.write(json.dumps(said))
