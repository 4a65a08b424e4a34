#!/usr/bin/env python3
"""Write what PyTorch makes of the bundled model: the values that crates/model is tested against.

For ten prompts: the prompt's tokens and each one's log-probability given those before it, then the greedy tokens up to and
with end-of-sequence and their log-probabilities, by the model of train_chained_addition.py in float32 on one thread. Each
token is computed from the whole sequence before it, without a cache of keys and values.

    pip install torch safetensors
    python tools/reference_chained_addition.py
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from train_chained_addition import BOS, EOS, MAX_COMPLETION_TOKENS, Llama

CRATE = Path(__file__).resolve().parent.parent / "crates" / "model"
CHECKPOINT = CRATE / "assets" / "chained-addition"
OUT = CRATE / "tests" / "data" / "reference.json"

# Two to five terms, as trained; then more terms than it was trained on, no sum at all, and text beyond ASCII.
PROMPTS = [
    "7+8=?\n",
    "99+99=?\n",
    "47+85+19=?\n",
    "3+96+50=?\n",
    "12+34+56+78=?\n",
    "88+1+99+27=?\n",
    "64+9+13+71+42=?\n",
    "99+98+97+96+95=?\n",
    "1+2+3+4+5+6+7+8=?\n",
    "Grüße, 你好?\n",
]


@torch.no_grad()
def reference(model, prompt):
    ids = [BOS, *prompt.encode()]
    logprobs = F.log_softmax(model(torch.tensor([ids]))[0], -1)
    prompt_logprobs = [logprobs[index, token].item() for index, token in enumerate(ids[1:])]
    output_ids, output_logprobs = [], []
    while len(output_ids) < MAX_COMPLETION_TOKENS and EOS not in output_ids:
        logprobs = F.log_softmax(model(torch.tensor([ids + output_ids]))[0, -1], -1)
        token = logprobs.argmax().item()
        output_ids.append(token)
        output_logprobs.append(logprobs[token].item())
    return {
        "prompt": prompt,
        "prompt_ids": ids,
        "prompt_logprobs": [round(value, 6) for value in prompt_logprobs],
        "output_ids": output_ids,
        "output_logprobs": [round(value, 6) for value in output_logprobs],
    }


def main():
    torch.set_num_threads(1)
    model = Llama(json.loads((CHECKPOINT / "config.json").read_text())).eval()
    state = {name: tensor.float() for name, tensor in load_file(CHECKPOINT / "model.safetensors").items()}
    model.load_state_dict(state, strict=True)
    lines = [json.dumps(reference(model, prompt), ensure_ascii=False) for prompt in PROMPTS]
    OUT.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
