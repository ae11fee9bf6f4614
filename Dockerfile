FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1 PYTHONUTF8=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /deskmate

# The CPU build of torch is a tenth of the default one. Where its index is out of reach, the next line finds torch elsewhere.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY requirements.txt ./
RUN pip install --timeout 10 --retries 1 --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' requirements.txt)" || true
RUN pip install --prefer-binary -r requirements.txt

COPY . .
RUN pip install --no-deps --no-build-isolation --editable . \
    && useradd --create-home deskmate \
    && install -d -o deskmate -g deskmate /data

USER deskmate
ENV APP_DATA_DIR=/data HF_HOME=/data/huggingface
VOLUME /data
HEALTHCHECK --start-period=60s --interval=10s --timeout=5s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f\"http://127.0.0.1:{os.environ.get('APP_PORT', '7860')}/ready\")"]
CMD ["deskmate", "serve"]
