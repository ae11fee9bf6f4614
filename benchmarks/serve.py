"""Load-tests any server with an OpenAI-compatible API over HTTP: Deskmate, vLLM, llama.cpp, and others.

    .venv/bin/python -m benchmarks.serve --url http://127.0.0.1:7860/v1 --rate 1 2 4 --requests 60
    .venv/bin/python -m benchmarks.serve --url http://127.0.0.1:8000/v1 --api completions --token-ids 32000 --ignore-eos

Open loop: requests arrive as a Poisson process whose times are fixed by a seed before the first is sent, and no request
waits for another one's answer. Latencies count from a request's planned time, so a request that the client sends late
because it cannot keep up includes the whole delay; the number of late requests is reported. TTFT is the time to the
first text; ITL is the gap between pieces of text, which hold one token each with most servers; TPOT is a reply's time
after its first token divided by the tokens that the server counts. Goodput counts the replies within --slo-ttft and
--slo-tpot; failed requests are not good.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from tqdm import tqdm

from benchmarks import machine
from benchmarks.load.arrivals import PlannedRequest, lengths, plan
from benchmarks.load.client import RequestOutcome, Target, run
from benchmarks.load.summary import PERCENTILES, GoodputSLO, summarize
from benchmarks.markdown_table import format_number

LATENCIES = {"ttft_ms": "TTFT", "itl_ms": "ITL", "tpot_ms": "TPOT", "e2e_ms": "whole reply"}


def main() -> None:
    args = _arguments()
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    extra = json.loads(args.extra) | ({"ignore_eos": True} if args.ignore_eos else {})
    model = args.model or _only_model(args.url, headers)
    target = Target(args.url, model, args.api == "chat", headers, extra)
    limits = GoodputSLO(args.slo_ttft / 1000, args.slo_tpot / 1000)
    result: dict[str, Any] = {
        "machine": machine.describe(),
        "url": args.url,
        "model": model,
        "asked": {key: value for key, value in vars(args).items() if key not in ("api_key", "output", "rate")},
        "rates": {},
    }
    _load(_planned(args, float("inf"), args.warm_up, args.seed - 1), target, args, "warm-up")
    for rate in args.rate:
        began, used = perf_counter(), process_time()
        outcomes = _load(_planned(args, rate, args.requests, args.seed), target, args, f"{rate:g}/s")
        found = summarize(outcomes, limits)
        found["client"]["cpu_cores"] = round((process_time() - used) / (perf_counter() - began), 3)
        result["rates"][f"{rate:g}"] = found
        print("\n".join(format_report(rate, found)), flush=True)
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written to {args.output}")
    if not any(found["answered"] for found in result["rates"].values()):
        sys.exit("No request was answered.")


def _load(
    planned: Sequence[PlannedRequest], target: Target, args: argparse.Namespace, name: str
) -> list[RequestOutcome]:
    with tqdm(total=len(planned), desc=name, file=sys.stderr, dynamic_ncols=True, leave=False) as bar:
        work = run(
            planned,
            target,
            max_in_flight=args.max_in_flight,
            timeout=args.timeout,
            progress=lambda _outcome: bar.update(),
        )
        return asyncio.run(work)


def _planned(args: argparse.Namespace, rate: float, requests: int, seed: int) -> list[PlannedRequest]:
    prompts, replies = lengths(args.prompt_tokens), lengths(args.reply_tokens)
    return plan(rate, requests, seed, prompts, replies, vocab_size=args.token_ids)


def format_report(rate: float, found: dict[str, Any]) -> list[str]:
    """Formats the figures of one rate as text."""
    lines = [
        f"\n{rate:g} requests per second planned: {found['answered']} of {found['requests']} answered in "
        f"{found['seconds']:.1f} s, {format_number(found['output_tokens_per_s'])} tokens/s; "
        f"good: {found['good_share']:.0%}, {found['goodput_requests_per_s']:.2f} requests/s"
    ]
    for key, name in LATENCIES.items():
        if spread := found[key]:
            figures = "  ".join(
                f"p{percentile} {format_number(spread[f'p{percentile}']):>7}" for percentile in PERCENTILES
            )
            lines.append(f"  {name + ', ms':<16} {figures}")
    lines += [f"  {count} failed: {error}" for error, count in found["errors"].items()]
    if found["cached_prompt_tokens"]:
        lines.append(f"  {found['cached_prompt_tokens']:,} of {found['prompt_tokens']:,} prompt tokens were cached")
    client = found["client"]
    if client["late"] or client["never_sent"]:
        lines.append(
            f"  the client did not keep up: {client['late']} requests sent late, by up to "
            f"{client['delay_ms']['max'] if client['delay_ms'] else 0:,.0f} ms, and {client['never_sent']} never"
        )
    return lines


def _only_model(url: str, headers: dict[str, str]) -> str:
    request = urllib.request.Request(f"{url.rstrip('/')}/models", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (OSError, ValueError, KeyError, IndexError) as error:
        sys.exit(f"{url} does not list its models ({error}). Name one with --model.")


def _rate(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("a rate must be above 0")
    return value


def _lengths(text: str) -> str:
    """Validates a distribution of lengths and returns it unchanged."""
    try:
        lengths(text)
        return text
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:7860/v1", help="base URL, including /v1")
    parser.add_argument("--model", help="default: the first model that the server lists")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY"), help="default: $OPENAI_API_KEY")
    parser.add_argument("--api", choices=("chat", "completions"), default="chat")
    parser.add_argument("--rate", nargs="+", type=_rate, default=[1.0], help="requests per second; inf: all at once")
    parser.add_argument("--requests", type=int, default=60, help="number of requests for each rate")
    parser.add_argument(
        "--prompt-tokens", type=_lengths, default="32-256", help="128, 32-256, exp:200, lognormal:200:0.8"
    )
    parser.add_argument("--reply-tokens", type=_lengths, default="64-128", help="max_tokens of a reply, same forms")
    parser.add_argument("--token-ids", type=int, metavar="VOCAB", help="prompts of token ids below this, not words")
    parser.add_argument("--ignore-eos", action="store_true", help="replies of full length, if the server supports it")
    parser.add_argument("--extra", default="{}", help='JSON for the body of every request, such as {"temperature": 0}')
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slo-ttft", type=float, default=1000.0, help="goodput limit: ms to the first token")
    parser.add_argument("--slo-tpot", type=float, default=100.0, help="goodput limit: ms per token after the first")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds until a request is abandoned")
    parser.add_argument("--max-in-flight", type=int, default=1000, help="limit of open connections")
    parser.add_argument("--warm-up", type=int, default=2, help="warm-up requests, which do not count")
    parser.add_argument("--output", type=Path, help="JSON file")
    args = parser.parse_args()
    if args.token_ids is not None and args.api == "chat":
        parser.error("--token-ids needs --api completions")
    return args


if __name__ == "__main__":
    main()
