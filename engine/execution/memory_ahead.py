"""Takes the memory of a CPU's cache shortly before chats need it, while the engine has nothing to compute.

The first write to a page waits until the system has zeroed it: with a model of 0.6 billion parameters, about 5 % of a
long prompt's time. Until the whole cache was used once, each chat begins on new pages.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.device.memory import populate

AHEAD_TOKENS = 4096  #: a long prompt, with its reply
MAX_AHEAD_BYTES = 1 << 29  #: in all tensors together
PIECE_BYTES = 1 << 21  #: a huge page: about 1.5 ms, for which a request that arrives meanwhile waits


class MemoryAhead:
    """The memory of a cache's first blocks: of those that were used, and some more.

    Args:
        tensors: contiguous, on the CPU; the first dimension is the block. Nothing is taken of others.
        block_size: tokens in a block.
    """

    def __init__(self, tensors: Sequence[Tensor], block_size: int) -> None:
        #: address and bytes per block
        self._tensors = [(rows.data_ptr(), rows.stride(0) * rows.element_size()) for rows in tensors]
        self._num_blocks = min((len(rows) for rows in tensors), default=0)
        if any(rows.device.type != "cpu" for rows in tensors):
            self._num_blocks = 0
        bytes_per_block = sum(size for _, size in self._tensors)
        self._num_ahead = min(AHEAD_TOKENS // block_size, MAX_AHEAD_BYTES // max(bytes_per_block, 1))
        self._piece_blocks = max(1, PIECE_BYTES // max((size for _, size in self._tensors), default=1))
        self._next_block = 0
        self._next_tensor = 0

    def take_piece(self, num_used: int) -> bool:
        """Takes the next piece: some blocks of one tensor.

        Args:
            num_used: the cache's first blocks, up to the last one that any chat has used.

        Returns:
            False if enough is taken, or the system cannot do it.
        """
        if self._next_block >= min(num_used + self._num_ahead, self._num_blocks):
            return False
        address, block_bytes = self._tensors[self._next_tensor]
        count = min(self._piece_blocks, self._num_blocks - self._next_block)
        if not populate(address + self._next_block * block_bytes, count * block_bytes):
            self._num_blocks = 0  # as nothing else would come of trying again
            return False
        self._next_tensor += 1
        if self._next_tensor == len(self._tensors):
            self._next_tensor = 0
            self._next_block += count
        return True
