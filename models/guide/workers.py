"""Several processes that train one model together, each on conversations of its own (``torchrun`` starts them)."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import distributed, nn


@dataclass(frozen=True, slots=True)
class Workers:
    """All processes of one training, seen from one of them."""

    rank: int = 0
    count: int = 1

    @classmethod
    def join(cls) -> Workers:
        """Those that ``torchrun`` started, once all are there; this process alone without it."""
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls()
        distributed.init_process_group("gloo")
        return cls(distributed.get_rank(), count)

    def average_gradients(self, model: nn.Module) -> None:
        """Give every process the mean of all processes' gradients."""
        if self.count == 1:
            return
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        together = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(together)
        together /= self.count
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, part in zip(gradients, together.split(sizes), strict=True):
            gradient.copy_(part.view_as(gradient))

    def broadcast(self, number: float) -> float:
        """The first process's number, in every process."""
        if self.count == 1:
            return number
        shared = torch.tensor(number, dtype=torch.float64)
        distributed.broadcast(shared, src=0)
        return shared.item()

    def wait(self) -> None:
        """Until every process is here."""
        if self.count > 1:
            distributed.barrier()

    def leave(self) -> None:
        """End the connections to the other processes: a process that exits with them open may abort."""
        if self.count > 1:
            distributed.destroy_process_group()
