"""Engine configuration: every field is an ``ENGINE_*`` environment variable and a ``deskmate serve`` flag."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from engine.errors import ModelLoadError
from engine.parameter_table import MAX_LOGPROBS

ADAPTER_NAME = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}"
"""Names of adapters, as a regular expression."""
ADAPTER_NAME_RULE = "names have at most 100 letters, digits, dots, dashes, underscores and slashes"


class EngineSettings(BaseSettings):
    """Settings for loading and running a model."""

    model_config = SettingsConfigDict(env_prefix="ENGINE_", env_file=".env", extra="ignore", frozen=True)

    model: str = Field(
        "models/guide",
        description="Folder with a Hugging Face model, or a hub id such as Qwen/Qwen3-0.6B.",
    )
    served_model_name: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Comma-separated names under which /v1 lists and accepts the model instead of its own; responses "
        "carry the first.",
    )
    revision: str | None = Field(None, description="Branch, tag or commit of a hub model.")
    models_dir: Path | None = Field(
        None,
        description="Folder for the models that `deskmate model get` and the page download, and in which they are "
        "found; default: models in the data folder.",
    )
    lora: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="LoRA adapters of the model as NAME=FOLDER, in PEFT's format, separated by commas; the flag may be "
        "repeated. /v1 lists each as a model, and requests choose it by its name.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Device for the model; auto is cuda where PyTorch can use the GPU, else cpu."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="Data type of the weights; auto is bfloat16 where the processor supports it natively."
    )
    quantization: Literal["none", "auto", "int8", "int4", "fp8"] = Field(
        "none",
        description="Quantize linear layers: less memory, less exact, faster on CPUs. int8 works everywhere, int4 on "
        "CPUs, fp8 on GPUs of compute capability 8.9 or later. auto takes the first of none, int8 and int4 that fits "
        "into memory. A checkpoint that is quantized keeps its bits with none and auto.",
    )
    native: bool = Field(
        True,
        description="On CPUs, run models in C++ where the decoder knows their structure (without AVX2, only their "
        "short steps). Images and wheels bring it compiled; elsewhere it is compiled at the first start, with g++ or "
        "clang++.",
    )
    attention: str = Field("auto", description="Attention kernel; auto picks the fastest one that can run here.")
    max_model_len: int | None = Field(
        None, ge=16, description="Context window in tokens; default: the model's own, or less where memory is short."
    )
    max_num_seqs: int = Field(64, ge=1, le=4096, description="Maximum requests decoded together in one step.")
    max_batched_tokens: int = Field(
        512, ge=1, description="Token budget of one step: decodes first, then chunks of prompts."
    )
    max_logprobs: int = Field(
        20,
        ge=0,
        le=MAX_LOGPROBS,
        description="Maximum log-probabilities that a request may ask for with each token of its reply or prompt.",
    )
    max_waiting: int = Field(256, ge=0, description="Maximum requests in the queue; one more is refused.")
    kv_block_size: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Tokens in one KV cache block; default: 16 or 256, depending on the attention kernel.",
    )
    kv_cache_dtype: Literal["auto", "int8", "fp8"] = Field(
        "auto",
        description="Data type of the KV cache: auto is the model's own; int8 keeps about twice the tokens in the same "
        "memory, a little less exact, on CPUs. No attention kernel reads fp8 yet.",
    )
    kv_cache_memory: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Memory for the KV cache in GiB; default: a share of free memory. On a CPU it is taken at start, "
        "so that the first chats need not wait for it; the default is taken as chats need it.",
    )
    memory_limit_variable: str | None = Field(
        None,
        min_length=1,
        description="The variable of .env that sets the memory limit of this container, such as DESKMATE_MEMORY: a "
        "message about a model that does not fit names it. docker-compose.yml sets it.",
    )
    num_kv_blocks: int | None = Field(None, ge=2, description="Exact number of KV blocks; overrides kv_cache_memory.")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="Share of the GPU's memory to use.")
    enable_prefix_caching: bool = Field(True, description="Reuse the KV cache of prompts with a common prefix.")
    cuda_graphs: bool = Field(True, description="On a GPU, record decodes as CUDA graphs where the model allows it.")
    overlap: bool = Field(True, description="On a GPU, prepare the next step while this one is computed.")
    batch_invariant: bool = Field(
        False,
        description="Make greedy and seeded replies the same alone and under load, in bfloat16 too; slower.",
    )
    speculation: str = Field(
        "off",
        min_length=1,
        description="Speculative decoding: draft tokens ahead and verify several in one step; replies stay the same. "
        "prompt-lookup drafts from the chat's own text; a folder or hub id names a small draft model with the same "
        "tokenizer.",
    )
    speculative_tokens: int = Field(
        4, ge=1, le=16, description="With speculation, maximum draft tokens for one reply in one step."
    )
    encoder: str | None = Field(
        None,
        min_length=1,
        description="Encoder for searching by meaning and for /v1/embeddings: a folder or hub id of BERT, XLM-R, Qwen "
        "3 Embedding and the like, such as sentence-transformers/all-MiniLM-L6-v2. It runs on the CPU. With "
        "ENGINE_REMOTE_URL: the name of an embedding model on those servers. Default: none.",
    )
    encoder_vectors: int = Field(
        200_000,
        ge=0,
        le=100_000_000,
        description="With an encoder, vectors that memory is left free for when the model and its cache are sized: a "
        "vector of 384 dimensions takes 1.5 KB.",
    )
    forbidden_words: str | None = Field(
        None,
        description="Whole words that no reply may contain, in any casing: separated by commas, or @ and a file with "
        "one word per line.",
    )
    reply_format: str = Field(
        "auto",
        description="How the model writes thinking and tool calls, see docs/models.md: none, or names joined by +, "
        "such as think+hermes; auto recognizes it by the chat template.",
    )
    num_threads: int | None = Field(
        None, ge=1, description="CPU threads for the model; default: all cores, or one for a tiny model."
    )
    remote_url: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="OpenAI-compatible servers that run the model, separated by commas; disables the local model.",
    )
    remote_api_key: SecretStr | None = Field(None, description="Key for those servers, sent as a bearer token.")
    remote_model: str | None = Field(
        None, description="Model to use on those servers; default: the only one they serve."
    )
    remote_kind: Literal["auto", "vllm", "sglang", "tgi", "llama.cpp", "llama-cpp-python", "deskmate", "openai"] = (
        Field("auto", description="Kind of those servers, which decides the parameters they accept; auto asks them.")
    )
    remote_timeout: float = Field(
        120.0, gt=0, le=3600, description="Seconds without data from such a server before its reply counts as failed."
    )
    remote_retries: int = Field(2, ge=0, le=10, description="Retries of a request whose reply has not begun.")

    @property
    def draft_model(self) -> str | None:
        """Folder or hub id of the draft model; None without one."""
        return None if self.speculation in ("off", "prompt-lookup") else self.speculation

    @property
    def max_sampled_rows(self) -> int:
        """Maximum rows of logits in one step."""
        each = 1 if self.speculation == "off" else 1 + self.speculative_tokens
        return min(self.max_num_seqs * each, self.max_batched_tokens)

    @property
    def adapters(self) -> dict[str, Path]:
        """The folder of each adapter, by name."""
        return {name: Path(folder).expanduser() for name, _, folder in (one.partition("=") for one in self.lora)}

    def with_adapter(self, name: str, folder: Path) -> EngineSettings:
        """Returns settings with one more adapter, in place of another of this name.

        Raises:
            ModelLoadError: this cannot be its name.
        """
        if re.fullmatch(ADAPTER_NAME, name) is None:
            raise ModelLoadError(f"An adapter cannot be named {name[:100]!r}: {ADAPTER_NAME_RULE}.")
        return self.model_copy(update={"lora": (*self.without_adapter(name).lora, f"{name}={folder}")})

    def without_adapter(self, name: str) -> EngineSettings:
        """Returns settings without the adapter of this name."""
        return self.model_copy(update={"lora": tuple(one for one in self.lora if one.partition("=")[0] != name)})

    @field_validator("remote_url", "served_model_name", "lora", mode="before")
    @classmethod
    def _split_at_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(one.strip() for one in value.split(",") if one.strip())
        return value

    @field_validator("lora")
    @classmethod
    def _check_adapters(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names: set[str] = set()
        for one in value:
            name, _, folder = one.partition("=")
            if re.fullmatch(ADAPTER_NAME, name) is None or not folder:
                raise ValueError(f"must be NAME=FOLDER; {ADAPTER_NAME_RULE}")
            if name in names:
                raise ValueError(f"the name {name} is given twice")
            names.add(name)
        return value

    @model_validator(mode="after")
    def _check_token_budget(self) -> EngineSettings:
        if self.max_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_batched_tokens ({self.max_batched_tokens}) must be at least max_num_seqs ({self.max_num_seqs}): "
                "every running request needs one token of each step"
            )
        return self
