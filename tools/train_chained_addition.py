#!/usr/bin/env python3
"""Train the bundled model: a byte-level Llama of 0.8 million parameters that does chained addition, from scratch.

    prompt      47+85+19=?\\n
    completion  47+85=132\\n132+19=151\\n#151<eos>
    reward      1 if the text after '#' is the sum, else 0

Ten to twenty minutes on two CPU cores. Writes config.json, generation_config.json, tokenizer.json, tokenizer_config.json,
model.safetensors (Hugging Face's layout) and training_info.json. Needs torch and safetensors:

    pip install torch safetensors
    python tools/train_chained_addition.py --out crates/model/assets/chained-addition
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

VOCAB_SIZE = 320
BOS, EOS, PAD = 256, 257, 258
SPECIAL_TOKENS = {"<|bos|>": BOS, "<|eos|>": EOS, "<|pad|>": PAD}
SPECIAL_TOKENS |= {f"<|reserved_{i}|>": i for i in range(PAD + 1, VOCAB_SIZE)}

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'user' %}{{ m['content'] }}{% if m['content'][-1:] != '\\n' %}{{ '\\n' }}{% endif %}"
    "{% elif m['role'] == 'assistant' %}{{ m['content'] }}<|eos|>{% endif %}"
    "{% endfor %}"
)

# Weight of a token in the loss: the prompt is random, so there is little to learn from it.
PROMPT_WEIGHT = 0.03
MAX_COMPLETION_TOKENS = 90
LOG_EVERY_STEPS = 100
EVALUATE_EVERY_STEPS = 500


# --- the task ---


def problem(rng, fewest=2, most=5, largest=99):
    """The terms of a random sum; some are small, so that short numbers are common."""
    count = rng.randint(fewest, most)
    return [rng.randint(1, largest) if rng.random() < 0.85 else rng.randint(1, 9) for _ in range(count)]


def prompt(terms):
    return "+".join(map(str, terms)) + "=?\n"


def completion(terms):
    total, lines = terms[0], []
    for term in terms[1:]:
        lines.append(f"{total}+{term}={total + term}\n")
        total += term
    return "".join(lines) + f"#{total}"


def is_right(terms, text):
    return "#" in text and text.rsplit("#", 1)[-1] == str(sum(terms))


def make_batch(rng, size, length):
    """Inputs, targets and the targets' weights; a row is problem after problem, cut at `length`."""
    ids = torch.full((size, length + 1), PAD)
    weights = torch.zeros(size, length + 1)
    for row in range(size):
        tokens, token_weights = [BOS], [0]
        while len(tokens) < length + 1:
            terms = problem(rng)
            question, answer = prompt(terms).encode(), completion(terms).encode()
            tokens += [*question, *answer, EOS]
            token_weights += [PROMPT_WEIGHT] * len(question) + [1] * (len(answer) + 1)
        ids[row] = torch.tensor(tokens[: length + 1])
        weights[row] = torch.tensor(token_weights[: length + 1])
    return ids[:, :-1], ids[:, 1:], weights[:, 1:]


# --- the model: module names are Hugging Face's, so that the state dict is the checkpoint ---


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope_tables(positions, head_dim, theta):
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden = config["hidden_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = hidden // self.heads
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)

    def forward(self, x, cos, sin, past=None):
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        if past is not None:
            if past:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            past[:] = k, v
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.self_attn, self.mlp = Attention(config), MLP(config)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)

    def forward(self, x, cos, sin, past=None):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, past)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])


class Llama(nn.Module):
    """Llama with a tied output head; `past` holds a list per layer, filled with its keys and values."""

    def __init__(self, config):
        super().__init__()
        self.model = Trunk(config)
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        cos, sin = rope_tables(config["max_position_embeddings"], head_dim, config["rope_theta"])
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        # What is added to the residual stream is scaled down by the number of additions.
        additions = math.sqrt(2 * config["num_hidden_layers"])
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                std = 0.02 if "embed" in name else 0.7 / math.sqrt(weight.shape[1])
                if "o_proj" in name or "down_proj" in name:
                    std /= additions
                nn.init.normal_(weight, std=std)

    def forward(self, ids, position=0, past=None):
        length = ids.shape[1]
        x = self.model.embed_tokens(ids)
        cos, sin = self.cos[position : position + length], self.sin[position : position + length]
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, None if past is None else past[index])
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def empty_past(self):
        return [[] for _ in self.model.layers]


# --- training ---


@torch.no_grad()
def evaluate(model, count, temperature, seed, fewest=2, most=5):
    """Share of right answers, mean tokens an answer, share by number of terms; prompts of one length share a batch."""
    rng = random.Random(seed)
    by_length = {}
    for _ in range(count):
        terms = problem(rng, fewest, most)
        by_length.setdefault(len(prompt(terms)), []).append(terms)
    lengths, right = [], {}
    for problems in by_length.values():
        for terms, answer in zip(problems, complete(model, problems, temperature)):
            lengths.append(len(answer))
            text = bytes(token for token in answer if token < 256).decode("latin1")
            right.setdefault(len(terms), []).append(is_right(terms, text))
    total = sum(map(sum, right.values()))
    by_terms = {terms: round(sum(flags) / len(flags), 3) for terms, flags in sorted(right.items())}
    return total / count, sum(lengths) / count, by_terms


def complete(model, problems, temperature):
    """The answers' tokens to problems whose prompts are equally long."""
    ids = torch.tensor([[BOS, *prompt(terms).encode()] for terms in problems])
    past, position = model.empty_past(), ids.shape[1]
    logits = model(ids, 0, past)[:, -1]
    answers, done = [[] for _ in problems], [False] * len(problems)
    for _ in range(MAX_COMPLETION_TOKENS):
        if temperature == 0:
            chosen = logits.argmax(-1)
        else:
            chosen = torch.multinomial(F.softmax(logits / temperature, -1), 1)[:, 0]
        for index, token in enumerate(chosen.tolist()):
            done[index] = done[index] or token == EOS
            if not done[index]:
                answers[index].append(token)
        if all(done):
            break
        logits = model(chosen[:, None], position, past)[:, -1]
        position += 1
    return answers


def train(model, args):
    """Trains until the steps or the minutes are used up; the learning rate follows whichever is nearer its end."""
    rng = random.Random(7)
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    vectors = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0}]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate, betas=(0.9, 0.98))
    begin, begin_cpu, tokens = time.time(), time.process_time(), 0
    for step in range(args.steps):
        progress = max(step / args.steps, (time.time() - begin) / (args.minutes * 60))
        if progress >= 1:
            break
        warm_up, decay = min(1, (step + 1) / 100), 0.5 * (1 + math.cos(math.pi * progress)) * 0.97 + 0.03
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * warm_up * decay
        inputs, targets, weights = make_batch(rng, args.batch_size, args.length)
        losses = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="none")
        loss = (losses * weights.flatten()).sum() / weights.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens += inputs.numel()
        if (step + 1) % LOG_EVERY_STEPS == 0:
            elapsed = time.time() - begin
            print(f"step {step + 1} loss {loss.item():.4f} {tokens / elapsed:.0f} tokens/s {elapsed:.0f} s", flush=True)
        if (step + 1) % EVALUATE_EVERY_STEPS == 0:
            for temperature in (0, 1.0):
                share, _, by_terms = evaluate(model, 300, temperature, seed=12345)
                print(f"  temperature {temperature}: {share:.3f} right, by terms {by_terms}", flush=True)
    return {
        "params": sum(weight.numel() for weight in model.parameters()),
        "steps": tokens // (args.batch_size * args.length),
        "tokens": tokens,
        "wall_s": round(time.time() - begin),
        "cpu_s": round(time.process_time() - begin_cpu),
    }


# --- the checkpoint ---


def byte_characters():
    """The printable character that stands for each byte in a byte-level vocabulary (as GPT-2 has it)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return characters


def tokenizer_file():
    """A byte-level BPE without merges: a token is a byte."""
    characters = byte_characters()
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bos = {"SpecialToken": {"id": "<|bos|>", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id, "content": content, **flags} for content, id in SPECIAL_TOKENS.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, first],
            "pair": [bos, first, second],
            "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [BOS], "tokens": ["<|bos|>"]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {characters[byte]: byte for byte in range(256)},
            "merges": [],
        },
    }


def config_file(config, dtype):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "head_dim": config["hidden_size"] // config["num_attention_heads"],
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "torch_dtype": dtype,
        "use_cache": True,
        **config,
    }


def save(model, config, out, dtype, info):
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().to(getattr(torch, dtype)) for name, weight in model.state_dict().items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    generation = {**ids, "do_sample": True, "temperature": 1.0, "max_new_tokens": 128}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer.json").write_text(json.dumps(tokenizer_file(), ensure_ascii=False))
    for name, content in [
        ("config.json", config_file(config, dtype)),
        ("generation_config.json", generation),
        ("tokenizer_config.json", tokenizer_config),
        ("training_info.json", info),
    ]:
        (out / name).write_text(json.dumps(content, indent=2))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of the checkpoint")
    parser.add_argument("--minutes", type=float, default=16, help="longest training time")
    parser.add_argument("--steps", type=int, default=3200, help="most optimizer steps")
    parser.add_argument("--batch-size", type=int, default=8, help="rows a step")
    parser.add_argument("--length", type=int, default=192, help="tokens a row")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--hidden-size", type=int, default=128, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.manual_seed(1)
    config = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": args.hidden_size,
        "intermediate_size": args.hidden_size * 3,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.hidden_size // 32,
        "num_key_value_heads": args.hidden_size // 64,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
    }
    model = Llama(config)
    info = train(model, args)
    info["greedy"] = evaluate(model, 2000, 0, seed=999)
    info["temp1"] = evaluate(model, 2000, 1.0, seed=999)
    info["greedy_6_8_terms"] = evaluate(model, 500, 0, seed=77, fewest=6, most=8)
    print(json.dumps(info))
    save(model, config, args.out, args.dtype, info)


if __name__ == "__main__":
    main()
