# Deskmate's container image: for CPUs by default, for NVIDIA GPUs with --build-arg DEVICE=cuda.
# Dependencies, PostgreSQL's client programs, the C++ decoder and the code have separate stages: a code change rebuilds
# only the code.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG POSTGRES_IMAGE=postgres:17-trixie
ARG DEVICE=cpu


# pg_dump must not be older than the server, and Debian's is. So it is taken from the server's own image, with its
# libraries and their loader, so that it runs on any base image.
FROM ${POSTGRES_IMAGE} AS postgresql-client
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN mkdir -p /client/bin /client/lib; \
    for program in pg_dump pg_restore; do \
        cp /usr/lib/postgresql/*/bin/"$program" /client/lib/; \
        printf '#!/bin/sh\nexec /opt/postgresql/lib/loader --library-path /opt/postgresql/lib /opt/postgresql/lib/%s "$@"\n' \
            "$program" >/client/bin/"$program"; \
    done; \
    ldd /client/lib/pg_* | awk '/\(0x/ { print $(NF - 1) }' | grep ^/ | sort -u | xargs cp -Lt /client/lib; \
    mv /client/lib/ld-linux* /client/lib/loader; \
    chmod 755 /client/bin/*


FROM ${PYTHON_IMAGE} AS dependencies-none
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python -m venv --without-pip /opt/venv
COPY requirements.txt requirements-torch.txt requirements-torch-cpu.txt ./

# For CPUs. The CPU build of torch, from an index of its own, is a tenth of the size of the one on PyPI.
# The lock files name every package with its hashes, so a mirror cannot change one.
FROM dependencies-none AS dependencies-cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/venv/bin/python install --no-compile --no-deps --require-hashes --prefer-binary \
        --extra-index-url "$TORCH_INDEX" -r requirements-torch-cpu.txt -r requirements.txt \
    || { echo "Is the output above about torch? Then its index did not answer: build again, or set a mirror with \
--build-arg TORCH_INDEX=URL."; exit 1; }
# Headers, tests and compilers' helpers are removed: a third of torch, and unused at run time. Only the modules that the
# server imports at start are compiled, by importing them here; the hundreds of other model families are not.
# hadolint ignore=DL3003
RUN cd /opt/venv/lib/python3*/site-packages \
    && find torch/bin -type f ! -name torch_shm_manager -delete \
    && rm -rf torch/include torch/test torch/share/cmake gradio/templates/node \
    && find pandas numpy sympy networkx -type d -name tests -prune -exec rm -rf {} + \
    && /opt/venv/bin/python -c "import alembic.command, anyio._backends._asyncio, gradio, prometheus_client, psycopg, \
pydantic_settings, rich.progress, sentencepiece, sqlalchemy.dialects.postgresql, sqlalchemy.dialects.sqlite, \
sqlalchemy.ext.asyncio, structlog, sys, tokenizers, torch._dynamo, transformers.generation.utils, \
transformers.models.auto.modeling_auto, transformers.models.auto.tokenization_auto, \
transformers.models.llama.modeling_llama, typer, uuid_utils, uvicorn"


# For NVIDIA GPUs: PyPI's torch includes CUDA, and FlashAttention 2 over paged keys and values.
# FLASH_ATTN adds FlashAttention 3 (Hopper) as built by PyTorch, from PyTorch's index only, because PyTorch does not own
# that name on PyPI. It may also be a wheel's URL, or empty. A package that does not load with this torch is removed
# again; the engine then uses torch's own FlashAttention.
FROM dependencies-none AS dependencies-cuda
ARG FLASH_ATTN=flash-attn-3
ARG FLASH_ATTN_INDEX=https://download.pytorch.org/whl/cu130
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/venv/bin/python install --no-deps --require-hashes --prefer-binary \
        -r requirements-torch.txt -r requirements.txt
# hadolint ignore=DL3013
RUN --mount=type=cache,target=/root/.cache/pip \
    if [ -n "$FLASH_ATTN" ] && ! { \
        pip --python /opt/venv/bin/python install --no-deps --only-binary :all: --index-url "$FLASH_ATTN_INDEX" "$FLASH_ATTN" \
        && { /opt/venv/bin/python -c "import flash_attn_interface" || /opt/venv/bin/python -c "import flash_attn"; }; \
    }; then \
        echo "WARNING: $FLASH_ATTN cannot be used; the engine will use PyTorch's own FlashAttention."; \
        pip --python /opt/venv/bin/python uninstall --yes flash-attn-3 flash-attn; \
    fi

# hadolint ignore=DL3006
FROM dependencies-${DEVICE} AS dependencies


# The C++ decoder, for each kind of processor. The compiler stays here: the server chooses one of them at its start.
FROM ${PYTHON_IMAGE} AS decoder
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY engine/execution/native/compiler.py engine/execution/native/*.cpp engine/execution/native/*.h ./
RUN python compiler.py /build/prebuilt


# The code, compiled here because the container's file system is read-only at run time.
FROM ${PYTHON_IMAGE} AS code
WORKDIR /deskmate
COPY . .
COPY --from=decoder /build/prebuilt engine/execution/native/prebuilt
RUN python -m compileall -q --invalidation-mode unchecked-hash app engine migrations \
    && printf '#!/opt/venv/bin/python\nfrom app.__main__ import main\n\nmain()\n' >deskmate \
    && chmod 755 deskmate


FROM ${PYTHON_IMAGE} AS system-cpu

# Triton compiles its kernels at run time, which needs a C compiler.
FROM ${PYTHON_IMAGE} AS system-cuda
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# hadolint ignore=DL3006
FROM system-${DEVICE}
ENV PATH=/opt/venv/bin:/opt/postgresql/bin:/deskmate:$PATH PYTHONPATH=/deskmate \
    PYTHONUNBUFFERED=1 PYTHONUTF8=1 PYTHONDONTWRITEBYTECODE=1
# A fixed user id, so that the owner of files in the volumes is known on the host.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin deskmate \
    && install -d -o deskmate -g deskmate /data /models
COPY --from=postgresql-client /client /opt/postgresql
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=code /deskmate /deskmate
WORKDIR /deskmate
USER 10001:10001
# /data: backups, uploads in progress, and the SQLite database if used. /models: downloaded models and compiled kernels.
ENV APP_DATA_DIR=/data HF_HOME=/models/huggingface TRITON_CACHE_DIR=/models/triton
VOLUME ["/data", "/models"]
EXPOSE 7860
# Loading a model may take long, especially the first time; the container is healthy as soon as /ready answers.
HEALTHCHECK --start-period=30m --interval=10s --timeout=5s --retries=3 \
    CMD ["python", "-IS", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ.get('APP_PORT', '7860') + '/ready')"]
CMD ["deskmate", "serve"]
