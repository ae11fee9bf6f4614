# Deskmate in a container: for processors as it stands, for NVIDIA GPUs with --build-arg DEVICE=cuda.
# Dependencies, PostgreSQL's client programs and the code are made apart, so that a change of code rebuilds only the code.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG POSTGRES_IMAGE=postgres:17-trixie
ARG DEVICE=cpu


# pg_dump must not be older than the server, and Debian's is. This takes it from the server's own image, with the
# libraries it needs and their loader, so that it runs whatever the other image is made of.
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
COPY requirements.txt ./

# For processors. The CPU build of torch, from an index of its own, is a tenth of the one on PyPI.
FROM dependencies-none AS dependencies-cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# hadolint ignore=DL3013
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/venv/bin/python install --timeout 10 --retries 1 --no-compile --no-deps \
        --extra-index-url "$TORCH_INDEX" "$(grep '^torch==' requirements.txt)" \
    && pip --python /opt/venv/bin/python install --no-compile --prefer-binary -r requirements.txt
# Headers, tests and compilers' helpers go: a third of torch, and nothing that runs here opens them. Of all modules only
# those that a start imports are kept compiled, which importing does; the hundreds of other model families are not.
# hadolint ignore=DL3003
RUN cd /opt/venv/lib/python3*/site-packages \
    && find torch/bin -type f ! -name torch_shm_manager -delete \
    && rm -rf torch/include torch/test torch/share/cmake gradio/templates/node \
    && find pandas numpy sympy networkx -type d -name tests -prune -exec rm -rf {} + \
    && /opt/venv/bin/python -c "import alembic.command, anyio._backends._asyncio, gradio, prometheus_client, psycopg, \
pydantic_settings, rich.progress, sentencepiece, sqlalchemy.dialects.postgresql, sqlalchemy.dialects.sqlite, \
sqlalchemy.ext.asyncio, structlog, sys, tokenizers, torch._dynamo, transformers.generation.utils, \
transformers.models.auto.modeling_auto, transformers.models.auto.tokenization_auto, \
transformers.models.llama.modeling_llama, typer, uuid_utils, uvicorn; sys.exit(torch.version.cuda and \
'This is not the CPU build of torch: its index did not answer. Build again, or name a mirror with --build-arg TORCH_INDEX=URL.')"


# For NVIDIA GPUs: PyPI's torch has CUDA in it, and FlashAttention 2 over paged keys and values.
# FLASH_ATTN adds FlashAttention 3 (Hopper) as PyTorch builds it, from PyTorch's index alone: on PyPI the name is not
# theirs. A wheel's URL goes as well, and nothing at all. What does not load beside this torch is taken out again: the engine then uses torch's own.
FROM dependencies-none AS dependencies-cuda
ARG FLASH_ATTN=flash-attn-3
ARG FLASH_ATTN_INDEX=https://download.pytorch.org/whl/cu130
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/venv/bin/python install --prefer-binary -r requirements.txt
# hadolint ignore=DL3013
RUN --mount=type=cache,target=/root/.cache/pip \
    if [ -n "$FLASH_ATTN" ] && ! { \
        pip --python /opt/venv/bin/python install --no-deps --only-binary :all: --index-url "$FLASH_ATTN_INDEX" "$FLASH_ATTN" \
        && { /opt/venv/bin/python -c "import flash_attn_interface" || /opt/venv/bin/python -c "import flash_attn"; }; \
    }; then \
        echo "WARNING: $FLASH_ATTN cannot be used here; PyTorch's own FlashAttention stays."; \
        pip --python /opt/venv/bin/python uninstall --yes flash-attn-3 flash-attn; \
    fi

# hadolint ignore=DL3006
FROM dependencies-${DEVICE} AS dependencies


# The code, compiled: a container's own files cannot be written when it runs.
FROM ${PYTHON_IMAGE} AS code
WORKDIR /deskmate
COPY . .
RUN python -m compileall -q --invalidation-mode unchecked-hash app engine migrations \
    && printf '#!/opt/venv/bin/python\nfrom app.__main__ import main\n\nmain()\n' >deskmate \
    && chmod 755 deskmate


FROM ${PYTHON_IMAGE} AS system-cpu

# The Triton kernels are compiled where they run, which takes a C compiler.
FROM ${PYTHON_IMAGE} AS system-cuda
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# hadolint ignore=DL3006
FROM system-${DEVICE}
ENV PATH=/opt/venv/bin:/opt/postgresql/bin:/deskmate:$PATH PYTHONPATH=/deskmate \
    PYTHONUNBUFFERED=1 PYTHONUTF8=1 PYTHONDONTWRITEBYTECODE=1
# A number of its own, so that whoever looks at the volumes from outside can name it.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin deskmate \
    && install -d -o deskmate -g deskmate /data /models
COPY --from=postgresql-client /client /opt/postgresql
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=code /deskmate /deskmate
WORKDIR /deskmate
USER 10001:10001
# /data: backups, files on their way in, and the database where it is SQLite. /models: what was fetched or compiled once.
ENV APP_DATA_DIR=/data HF_HOME=/models/huggingface TRITON_CACHE_DIR=/models/triton
VOLUME ["/data", "/models"]
EXPOSE 7860
# Loading a model may take long, above all the first time; it is ready as soon as it says so.
HEALTHCHECK --start-period=30m --interval=10s --timeout=5s --retries=3 \
    CMD ["python", "-IS", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ.get('APP_PORT', '7860') + '/ready')"]
CMD ["deskmate", "serve"]
