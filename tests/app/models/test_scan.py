"""Models found on a machine: whole ones, damaged ones, and folders that lead astray."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from app.models import scan as scan_module
from app.models.folders import ModelFolder, model_folders
from app.models.local_model import LocalModel, Source
from app.models.scan import DOWNLOADS, Scan, find_models
from testing.gguf_header import F32, gguf_bytes

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def in_folder(path: Path, source: Source = Source.MODELS_DIR) -> Scan:
    return find_models([ModelFolder(source, path)])


def only(scan: Scan) -> LocalModel:
    [model] = scan.models
    return model


def write_checkpoint(folder: Path, config: object = None, **tensors: tuple[str, int]) -> None:
    """Writes a config, and a weight file with tensors of these types and sizes in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 128}
    (folder / "config.json").write_text(json.dumps({**given, **config} if isinstance(config, dict) else given))
    header, at = {}, 0
    for name, (kind, size) in (tensors or {"model.layers.0.x": ("BF16", 200)}).items():
        header[name] = {"dtype": kind, "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


# ---- whole models


def test_a_gguf_file_is_found_with_what_its_header_says(tmp_path: Path) -> None:
    (tmp_path / "Tiny.Q4_1.gguf").write_bytes(gguf_bytes())
    model = only(in_folder(tmp_path))
    assert (model.id, model.target) == ("models-dir:Tiny.Q4_1", str(tmp_path / "Tiny.Q4_1.gguf"))
    weights = model.weights
    assert weights is not None
    assert (weights.format, weights.context_length, weights.memory_bytes) == ("GGUF Q4_1", 512, 64 * 32 // 32 * 20)


def test_embeddings_beside_an_output_layer_and_idle_experts_are_not_read(tmp_path: Path) -> None:
    shapes = {"token_embd.weight": (10, 10), "output.weight": (10, 10), "blk.0.ffn_up_exps.weight": (8, 100)}
    keys = {"llama.expert_count": 8, "llama.expert_used_count": 2}
    (tmp_path / "moe.gguf").write_bytes(gguf_bytes(keys, shapes, kind=F32))
    weights = only(in_folder(tmp_path)).weights
    assert weights is not None
    assert (weights.memory_bytes, weights.bytes_per_token) == (4000, 400 + 800)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "BF16"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "AWQ 4-bit"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "GPTQ 8-bit"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "bitsandbytes 4-bit"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "MXFP4"),
    ],
)
def test_a_checkpoint_is_found_with_its_format(tmp_path: Path, config: dict[str, object], expected: str) -> None:
    write_checkpoint(tmp_path / "org" / "tiny", config)
    model = only(in_folder(tmp_path))
    assert (model.name, model.target) == ("org/tiny", str(tmp_path / "org" / "tiny"))
    assert model.weights is not None
    assert (model.weights.format, model.weights.context_length) == (expected, 128)


def test_float32_takes_half_the_memory(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a", None, **{"x": ("F32", 400), "lm_head.weight": ("F32", 80)})
    weights = only(in_folder(tmp_path)).weights
    assert weights is not None
    assert (weights.format, weights.memory_bytes, weights.bytes_per_token) == ("F32", 240, 240)


def test_parts_are_one_model(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"big-0000{number}-of-00002.gguf").write_bytes(gguf_bytes({"split.count": 2}))
    model = only(in_folder(tmp_path))
    assert (model.name, model.problem, len(model.paths)) == ("big", None, 2)
    (tmp_path / "big-00002-of-00002.gguf").unlink()
    assert only(in_folder(tmp_path)).problem == (
        "The folder lacks 1 of the 2 parts of this model: big-00002-of-00002.gguf. Put all parts into one folder."
    )


def hub_model(cache: Path, name: str = "org/tiny") -> Path:
    """Makes a model in a hub's cache, its files links to blobs. Returns the snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    write_checkpoint(repository / "blobs")
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for file in ("config.json", "model.safetensors"):
        (snapshot / file).symlink_to(Path("../../blobs") / file)
    return snapshot


def test_the_hubs_cache_is_found_by_hub_id(tmp_path: Path) -> None:
    hub_model(tmp_path)
    model = only(in_folder(tmp_path, Source.HUB_CACHE))
    assert (model.name, model.target, model.problem) == ("org/tiny", "org/tiny", None)
    assert model.size_bytes > 200


def test_gguf_files_of_the_hubs_cache_are_found_by_their_quantization(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--tiny-GGUF" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name in ("tiny-Q4_1.gguf", "tiny-Q8_0.gguf", "other-Q8_0.gguf", "tiny.gguf"):
        (snapshot / name).write_bytes(gguf_bytes())
    for number in (1, 2):
        (snapshot / f"tiny-BF16-0000{number}-of-00002.gguf").write_bytes(gguf_bytes({"split.count": 2}))
    models = in_folder(tmp_path, Source.HUB_CACHE).models
    quantizations = ["BF16", "Q4_1", "other-Q8_0", "tiny", "tiny-Q8_0"]
    assert sorted(model.target for model in models) == [f"org/tiny-GGUF:{each}" for each in quantizations]
    assert {model.name == model.target for model in models} == {True}


def ollama_model(root: Path, place: str = "registry.ollama.ai/library/tiny/1b", **layer: str) -> Path:
    digest = "a" * 64
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    (root / "blobs" / f"sha256-{digest}").write_bytes(gguf_bytes())
    manifest = root / "manifests" / place
    manifest.parent.mkdir(parents=True)
    kind = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", **layer}
    manifest.write_text(json.dumps({"layers": [kind]}))
    return manifest


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("registry.ollama.ai/library/tiny/1b", "tiny:1b"),
        ("registry.ollama.ai/somebody/tiny/1b", "somebody/tiny:1b"),
        ("hf.co/org/tiny-GGUF/Q4_1", "hf.co/org/tiny-GGUF:Q4_1"),
    ],
)
def test_ollamas_blobs_are_found_by_their_manifests(tmp_path: Path, place: str, name: str) -> None:
    ollama_model(tmp_path, place)
    model = only(in_folder(tmp_path, Source.OLLAMA))
    assert (model.name, model.problem) == (name, None)
    assert Path(model.target).name == f"sha256-{'a' * 64}"
    assert model.weights is not None


# ---- damaged ones


DAMAGED_GGUF = {
    "empty": b"",
    "short": b"GGUF\x03\0\0\0",
    "no magic": b"FUGG" + gguf_bytes()[4:],
    "version": b"GGUF" + struct.pack("<I", 9) + gguf_bytes()[8:],
    "too many keys": gguf_bytes()[:16] + struct.pack("<Q", 2**60) + gguf_bytes()[24:],
    "too many tensors": gguf_bytes()[:8] + struct.pack("<Q", 2**62) + gguf_bytes()[16:],
    "key too long": gguf_bytes()[:24] + struct.pack("<Q", 2**63) + gguf_bytes()[32:],
    "half": gguf_bytes()[: len(gguf_bytes()) // 3],
    "weights cut off": gguf_bytes()[:-64],
    "no architecture": gguf_bytes({"general.architecture": 7}),
    "noise": os.urandom(4096),
}


@pytest.mark.parametrize("content", DAMAGED_GGUF.values(), ids=DAMAGED_GGUF.keys())
def test_a_damaged_gguf_file_is_listed_with_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.gguf").write_bytes(content)
    (tmp_path / "good.gguf").write_bytes(gguf_bytes())
    bad, good = in_folder(tmp_path).models
    assert bad.problem is not None
    assert bad.problem.endswith(".")
    assert bad.weights is None
    assert good.problem is None


def test_every_cut_of_a_gguf_header_is_a_sentence(tmp_path: Path) -> None:
    whole = gguf_bytes()
    file = tmp_path / "bad.gguf"
    for length in range(len(whole) - 1):
        file.write_bytes(whole[:length])
        assert only(in_folder(tmp_path)).problem is not None, length


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        struct.pack("<Q", 2**60),
        struct.pack("<Q", 4) + b"nope",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 9) + b'{"a": 12}',
        struct.pack("<Q", 51) + b'{"a":{"dtype":"BF16","data_offsets":[0,999999999]}}',
        struct.pack("<Q", 43) + b'{"a":{"dtype":"BF16","data_offsets":[9,3]}}',
        struct.pack("<Q", 100_000) + b"[" * 100_000,
    ],
)
def test_damaged_weights_are_listed_with_a_sentence(tmp_path: Path, content: bytes) -> None:
    write_checkpoint(tmp_path / "tiny")
    (tmp_path / "tiny" / "model.safetensors").write_bytes(content)
    assert only(in_folder(tmp_path)).problem == (
        "Its weights are damaged or cut short: model.safetensors. Download them again."
    )


@pytest.mark.parametrize("config", ["", "[]", "{", "7", "[" * 100_000])
def test_a_damaged_config_is_listed_with_a_sentence(tmp_path: Path, config: str) -> None:
    write_checkpoint(tmp_path / "tiny")
    (tmp_path / "tiny" / "config.json").write_text(config)
    assert only(in_folder(tmp_path)).problem == "Its config.json is damaged."


def test_missing_weights_and_pickles_are_said(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a")
    (tmp_path / "a" / "model.safetensors.index.json").write_text('{"weight_map": {"x": "model-2.safetensors"}}')
    write_checkpoint(tmp_path / "b")
    (tmp_path / "b" / "model.safetensors").rename(tmp_path / "b" / "pytorch_model.bin")
    first, second = in_folder(tmp_path).models
    assert first.problem == "Its download is incomplete: model-2.safetensors is missing."
    assert second.problem is not None
    assert "pickle" in second.problem


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "[]",
        '{"layers": 3}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../../etc/passwd"}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "/etc/passwd"}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:' + "b" * 64 + '"}]}',
        "x" * (2**20 + 1),
    ],
)
def test_a_damaged_manifest_is_listed_with_a_sentence(tmp_path: Path, manifest: str) -> None:
    ollama_model(tmp_path).write_text(manifest)
    model = only(in_folder(tmp_path, Source.OLLAMA))
    assert model.problem is not None
    assert "passwd" not in model.target


def test_what_cannot_chat_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "mmproj.gguf").write_bytes(gguf_bytes({"general.architecture": "clip"}))
    (tmp_path / "minilm.gguf").write_bytes(gguf_bytes({"general.architecture": "bert"}))
    write_checkpoint(tmp_path / "bert", {"architectures": ["BertModel"]})
    assert in_folder(tmp_path) == Scan()


# ---- folders that lead astray


def test_no_link_out_of_the_folder_is_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    write_checkpoint(outside / "model")
    (outside / "secret.gguf").write_bytes(gguf_bytes())
    inside.mkdir()
    (inside / "folder").symlink_to(outside)
    (inside / "file.gguf").symlink_to(outside / "secret.gguf")
    (inside / "own").mkdir()
    (inside / "own" / "config.json").symlink_to(outside / "model" / "config.json")
    assert in_folder(inside) == Scan()


def test_no_link_out_of_the_hubs_cache_is_followed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "outside")
    snapshot = hub_model(tmp_path / "cache")
    for file in ("config.json", "model.safetensors"):
        (snapshot / file).unlink()
        (snapshot / file).symlink_to(tmp_path / "outside" / file)
    assert in_folder(tmp_path / "cache", Source.HUB_CACHE) == Scan()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_folder_with_a_link_out_of_it_cannot_be_loaded(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("{}")
    write_checkpoint(tmp_path / "models" / "tiny")
    (tmp_path / "models" / "tiny" / name).unlink(missing_ok=True)
    (tmp_path / "models" / "tiny" / name).symlink_to(tmp_path / "secret")
    problem = only(in_folder(tmp_path / "models")).problem
    assert problem == f"It has a link out of the folder, which is not followed: {name}."


def test_a_blob_behind_a_link_out_of_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(gguf_bytes())
    root = tmp_path / "ollama"
    ollama_model(root)
    blob = root / "blobs" / f"sha256-{'a' * 64}"
    blob.unlink()
    blob.symlink_to(tmp_path / "secret")
    problem = only(in_folder(root, Source.OLLAMA)).problem
    assert problem is not None
    assert "not followed" in problem


def test_loops_of_links_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "self.gguf").symlink_to(tmp_path / "self.gguf")
    (tmp_path / "one.gguf").symlink_to(tmp_path / "two.gguf")
    (tmp_path / "two.gguf").symlink_to(tmp_path / "one.gguf")
    assert in_folder(tmp_path) == Scan()


def test_special_files_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")  # opening it would wait for ever
    write_checkpoint(tmp_path / "tiny")
    (tmp_path / "tiny" / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "tiny" / "model.safetensors")
    assert only(in_folder(tmp_path)).problem is not None


def test_folders_that_cannot_be_searched_are_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert in_folder(tmp_path / "missing") == Scan()
    assert "is no folder" in in_folder(tmp_path / "file").notes[0]


@pytest.mark.parametrize("source", [Source.MODELS_DIR, Source.HUB_CACHE, Source.OLLAMA, Source.LM_STUDIO])
def test_a_folder_that_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Source) -> None:
    def refuse(path: object) -> None:  # tests may run as root, whom no mode refuses
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    assert in_folder(tmp_path, source).notes == [f"{tmp_path} was not searched for models: Permission denied."]


def test_unfinished_downloads_and_hidden_folders_are_left_out(tmp_path: Path) -> None:
    (tmp_path / DOWNLOADS).mkdir()
    (tmp_path / DOWNLOADS / "x.gguf").write_bytes(gguf_bytes())
    assert in_folder(tmp_path) == Scan()


def test_a_huge_folder_ends_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "MAX_ENTRIES", 10)
    for number in range(11):
        (tmp_path / f"{number}.txt").touch()
    assert "more than 10 files" in in_folder(tmp_path).notes[0]


def test_strange_names_do_no_harm(tmp_path: Path) -> None:
    for name in ("a\nb.gguf", "<img src=x>.gguf", "-rf.gguf", "é" * 80 + ".gguf"):
        (tmp_path / name).write_bytes(gguf_bytes())
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff.gguf", os.O_CREAT | os.O_WRONLY))
    models = in_folder(tmp_path).models
    assert len(models) == 5
    for model in models:
        model.name.encode()  # an undecodable byte of a file's name must not break the JSON answer


def test_the_usual_folders_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "elsewhere"))
    paths = [folder.path for folder in model_folders(tmp_path / "own")]
    for path in ("own", "elsewhere", ".ollama/models", ".lmstudio/models", ".cache/lm-studio/models"):
        assert tmp_path / path in paths
    assert Path("/usr/share/ollama/.ollama/models") in paths
