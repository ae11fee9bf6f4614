"""Processes that train one model together have the same gradients afterwards."""

from __future__ import annotations

import os
import socket

import pytest
import torch
from torch import distributed, multiprocessing, nn

from models.guide.workers import Workers


def _work(rank: int, port: int) -> None:
    os.environ.update(WORLD_SIZE="2", RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    workers = Workers.join()
    assert (workers.rank, workers.count) == (rank, 2)
    model = nn.Linear(3, 2)
    model.weight.grad = torch.full((2, 3), float(rank))
    model.bias.grad = torch.tensor([1.0, 2.0]) * (rank + 1)
    workers.average_gradients(model)
    assert torch.equal(model.weight.grad, torch.full((2, 3), 0.5))
    assert torch.equal(model.bias.grad, torch.tensor([1.5, 3.0]))
    workers.wait()
    workers.leave()
    assert not distributed.is_initialized()


@pytest.mark.full
def test_gradients_are_averaged_between_processes() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(_work, args=(port,), nprocs=2)


def test_one_process_alone_keeps_its_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    workers = Workers.join()
    model = nn.Linear(3, 2)
    model.weight.grad = torch.ones(2, 3)
    workers.average_gradients(model)
    workers.wait()
    workers.leave()
    assert workers == Workers(rank=0, count=1)
    assert torch.equal(model.weight.grad, torch.ones(2, 3))
