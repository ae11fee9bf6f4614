"""The pool of KV blocks: allocate, share, release, find by content. No torch; the tensors live in the runner.

A block holds the keys and values of ``block_size`` consecutive tokens, in every layer of a group. A *full* block has
an address: the hash of its tokens, chained to the address of the block before it, so equal addresses mean equal
prefixes. A free block keeps its content until it is allocated again; until then, a request with the same prefix takes
it back from the free list (as in vLLM and nano-vllm). The first rows of a *partial* block can be found too, by the
address of the block before it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

NULL_BLOCK = 0
"""Block 0 is never allocated: it pads block tables, so that padding always points at valid memory."""

MAX_SCANNED_BLOCKS = 4096
"""Maximum number of blocks scanned for a contiguous run. Beyond it, blocks are allocated from anywhere."""

MAX_PARTIAL_CANDIDATES = 16
"""Number of blocks with the same parent, latest first, that are compared token by token. Older ones are not found."""


class IntegrityError(AssertionError):
    """The pool's bookkeeping is inconsistent: a defect of the engine, never of a request."""


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Returns the address of a full block: 16 bytes of BLAKE2b over its parent's address and its tokens."""
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A copy of the first rows of a block, in all layers of its group, made before its step's forward pass."""

    source: int
    destination: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class _Content:
    """Cached content of a block."""

    group: int
    parent: bytes  #: address of the block before it
    token_ids: tuple[int, ...]  #: tokens of the first rows
    address: bytes | None  #: None for a partial block


class BlockPool:
    """Reference-counted KV blocks with an index by content: full blocks by address, partial blocks by their parent.

    A block belongs to one layer group at a time; content is looked up within a group.

    Args:
        num_blocks: size of the pool, the null block included; at least 2.
        block_size: tokens per block.
        enable_prefix_caching: when off, nothing is indexed and nothing is found.
        contiguous: the kernel reads consecutive blocks faster, see :meth:`allocate_contiguous`.

    Raises:
        ValueError: ``num_blocks`` or ``block_size`` is too small.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True, contiguous: bool = False
    ) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks must be at least 2 (got {num_blocks}): block 0 is reserved")
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1 (got {block_size})")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.contiguous = contiguous
        self._ref_counts = [0] * num_blocks
        self._content: list[_Content | None] = [None] * num_blocks
        # The part that every user may find, of blocks whose later rows are one user's; see :meth:`register_shared`.
        self._shared: list[_Content | None] = [None] * num_blocks
        self._block_of: dict[tuple[int, bytes], int] = {}
        self._children: dict[tuple[int, bytes], dict[int, None]] = {}  # by parent, oldest first
        # Least recently freed first: those are allocated, and their content evicted, first.
        self._free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(1, num_blocks))
        self._num_freed = 0
        self._freed_at = [0] * num_blocks  # self._num_freed when each block was last freed
        self._scan_start = 1  # first block of the next scan for a contiguous run

    @property
    def num_usable(self) -> int:
        """Blocks that requests can hold (all but the null block)."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, including those with cached content."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the usable blocks held by requests, 0 to 1."""
        return 1.0 - self.num_free / self.num_usable

    def blocks_for(self, num_tokens: int) -> int:
        """Returns how many blocks ``num_tokens`` tokens occupy."""
        return -(-num_tokens // self.block_size)

    def find(self, group: int, address: bytes) -> int | None:
        """Returns the full block with this address, if it is cached. Takes no reference."""
        return self._block_of.get((group, address))

    def find_partial_block(self, group: int, parent: bytes, token_ids: Sequence[int]) -> tuple[int, int]:
        """Finds the block after ``parent``, full or partial, that starts with the most of these tokens.

        Takes no reference.

        Returns:
            The block, and the number of its first rows that hold these tokens; 0 rows if there is none.
        """
        best, max_rows = NULL_BLOCK, 0
        for block in islice(reversed(self._children.get((group, parent), {})), MAX_PARTIAL_CANDIDATES):
            content = self._content[block]
            if content is None or content.parent != parent:
                content = self._shared[block]
            assert content is not None
            rows = 0
            for ours, theirs in zip(token_ids, content.token_ids, strict=False):
                if ours != theirs:
                    break
                rows += 1
            if rows > max_rows:
                best, max_rows = block, rows
        return best, max_rows

    def num_free_after_share(self, blocks: Iterable[int]) -> int:
        """Returns how many blocks would remain free if these cached blocks were shared."""
        return self.num_free - sum(1 for block in blocks if self._ref_counts[block] == 0)

    def share(self, blocks: Iterable[int]) -> None:
        """Takes one more reference on each block."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                del self._free[block]
            self._ref_counts[block] += 1

    def num_holders(self, block: int) -> int:
        return self._ref_counts[block]

    def is_shared(self, block: int) -> bool:
        """Whether a block has several references: its rows must not change then."""
        return self._ref_counts[block] > 1

    def take_over(self, block: int, num_rows: int) -> bool:
        """Takes a free block whose cached content is exactly its first ``num_rows`` rows, to append to them.

        Returns:
            False if a request holds the block, or it caches more than these rows.
        """
        content = self._content[block]
        if self._ref_counts[block] or content is None or content.address or len(content.token_ids) != num_rows:
            return False
        del self._free[block]
        shared = self._shared[block]
        self._evict(block)
        self._ref_counts[block] = 1
        if shared is not None:  # those rows are not overwritten
            self._index_shared(block, shared)
        return True

    def allocate(self, count: int) -> list[int]:
        """Allocates ``count`` blocks and evicts their cached content.

        Raises:
            IndexError: fewer blocks are free. Callers check :attr:`num_free` first.
        """
        if count > len(self._free):
            raise IndexError(f"{count} blocks asked for, {len(self._free)} free")
        blocks = list(islice(self._free, count))
        self._hand_out(blocks)
        return blocks

    def allocate_contiguous(self, count: int, *, behind: int | None = None, spare: int = 0) -> list[int]:
        """Allocates ``count`` consecutive blocks where that evicts only stale content.

        Without :attr:`contiguous`, and for blocks without such a place, does the same as :meth:`allocate`.

        Args:
            behind: block that the first new one should follow, if any.
            spare: number of blocks after the run that later runs skip at first, so that this run can grow.

        Raises:
            IndexError: as :meth:`allocate`.
        """
        if not self.contiguous or count > len(self._free):
            return self.allocate(count)
        blocks: list[int] = []
        if behind is not None:
            at = behind + 1
            while len(blocks) < count and at < self.num_blocks and self._is_stale(at):
                blocks.append(at)
                at += 1
            self._hand_out(blocks)
        rest = count - len(blocks)
        if rest == 0:
            return blocks
        start = self._find_contiguous(rest + spare) or self._find_contiguous(rest)
        if start is None:
            return blocks + self.allocate(rest)
        found = list(range(start, start + rest))
        self._hand_out(found)
        return blocks + found

    def _find_contiguous(self, count: int) -> int | None:
        """Returns the first of ``count`` consecutive stale blocks; None if there is no such run.

        The scan continues where the last run was found and goes round the pool, so it meets the oldest content first.
        Each candidate run is checked from its last block: if that is taken, all runs that contain it are skipped.
        """
        start, passed = self._scan_start, 0
        while passed < min(self.num_usable, MAX_SCANNED_BLOCKS):
            end = start + count
            if end > self.num_blocks:
                passed += max(self.num_blocks - start, 1)
                start = 1
                continue
            taken = self._last_taken(start, end)
            if taken is None:
                self._scan_start = end
                return start
            passed += taken + 1 - start
            start = taken + 1
        return None

    def _last_taken(self, start: int, end: int) -> int | None:
        """Returns the last block from ``start`` to ``end`` (exclusive) that is not stale; None if all are."""
        counts, content, freed_at = self._ref_counts, self._content, self._freed_at
        stale_since = self._num_freed - len(self._free) // 2
        for block in range(end - 1, start - 1, -1):
            if counts[block] or (content[block] is not None and freed_at[block] > stale_since):
                return block
        return None

    def _is_stale(self, block: int) -> bool:
        """Whether a block is free, and either empty or freed longer ago than half of the free blocks.

        The content of such a block would be evicted soon anyway.
        """
        return self._last_taken(block, block + 1) is None

    def _hand_out(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            del self._free[block]
            self._evict(block)
            self._ref_counts[block] = 1

    def release(self, blocks: Sequence[int]) -> None:
        """Releases one reference on each block of a sequence.

        The tail is freed first, so that a sequence's end is evicted before its start, which other requests are more
        likely to share.

        Raises:
            IntegrityError: a block has no reference.
        """
        for block in reversed(blocks):
            count = self._ref_counts[block]
            if count <= 0:
                raise IntegrityError(f"block {block} is released, but no request holds it")
            self._ref_counts[block] = count - 1
            if count == 1:
                self._free[block] = None
                self._num_freed += 1
                self._freed_at[block] = self._num_freed

    def register(self, block: int, group: int, parent: bytes, token_ids: Sequence[int], address: bytes) -> None:
        """Indexes a full block under its address. If another block has the same address already, that one stays."""
        if not self.enable_prefix_caching or (group, address) in self._block_of:
            return
        self._evict_own(block)  # its entry as a partial block
        self._index(block, _Content(group, parent, tuple(token_ids), address))
        self._block_of[group, address] = block

    def register_partial_block(self, block: int, group: int, parent: bytes, token_ids: Sequence[int]) -> None:
        """Indexes the first rows of a block under its parent, unless they are cached already."""
        content = self._content[block]
        if content is not None and (content.address or len(content.token_ids) >= len(token_ids)):
            return
        _block, rows = self.find_partial_block(group, parent, token_ids)
        if rows < len(token_ids):
            self._evict_own(block)
            self._index(block, _Content(group, parent, tuple(token_ids), None))

    def register_shared(self, block: int, group: int, parent: bytes, token_ids: Sequence[int]) -> None:
        """Indexes the first rows of a block under a parent of their own, unless they are cached already.

        For a block whose first tokens every user may find, and whose later tokens are one user's.
        """
        _block, rows = self.find_partial_block(group, parent, token_ids)
        if self.enable_prefix_caching and rows < len(token_ids) and self._shared[block] is None:
            self._index_shared(block, _Content(group, parent, tuple(token_ids), None))

    def evict(self, blocks: Iterable[int]) -> list[int]:
        """Evicts the content of those blocks that no request holds, and returns them."""
        free = [block for block in blocks if self._ref_counts[block] == 0]
        for block in free:
            self._evict(block)
        return free

    def reset_prefix_cache(self) -> None:
        """Evicts all cached content but keeps the references, as when the tensors are replaced."""
        self._block_of.clear()
        self._children.clear()
        self._content = [None] * self.num_blocks
        self._shared = [None] * self.num_blocks

    def _index(self, block: int, content: _Content) -> None:
        if self.enable_prefix_caching:
            shared = self._shared[block]
            if shared is not None and (shared.group, shared.parent) == (content.group, content.parent):
                self._evict_shared(block)  # redundant: this content starts with the same rows, under the same parent
            self._content[block] = content
            self._children.setdefault((content.group, content.parent), {})[block] = None

    def _index_shared(self, block: int, content: _Content) -> None:
        self._shared[block] = content
        self._children.setdefault((content.group, content.parent), {})[block] = None

    def _evict(self, block: int) -> None:
        self._evict_own(block)
        self._evict_shared(block)

    def _evict_shared(self, block: int) -> None:
        shared = self._shared[block]
        if shared is not None:
            self._shared[block] = None
            self._remove_child(block, shared)

    def _evict_own(self, block: int) -> None:
        content = self._content[block]
        if content is None:
            return
        self._content[block] = None
        if content.address is not None:
            del self._block_of[content.group, content.address]
        self._remove_child(block, content)

    def _remove_child(self, block: int, content: _Content) -> None:
        siblings = self._children[content.group, content.parent]
        del siblings[block]
        if not siblings:
            del self._children[content.group, content.parent]

    def check(self, holders: Iterable[Sequence[int]] = ()) -> None:
        """Verifies reference counts, free list and index against the blocks that requests hold.

        Args:
            holders: the blocks of every request that holds any; none when the engine is idle.

        Raises:
            IntegrityError: a leak, a wrong count, or an index entry that points at the wrong block.
        """
        expected = [0] * self.num_blocks
        for table in holders:
            for block in table:
                expected[block] += 1
        if expected[NULL_BLOCK]:
            raise IntegrityError("a request holds the null block")
        for block in range(1, self.num_blocks):
            if self._ref_counts[block] != expected[block]:
                raise IntegrityError(
                    f"block {block} has a reference count of {self._ref_counts[block]}, but {expected[block]} holders"
                )
            if (block in self._free) != (expected[block] == 0):
                raise IntegrityError(f"block {block} is in the wrong list for {expected[block]} holders")
        for (group, address), block in self._block_of.items():
            content = self._content[block]
            if content is None or (content.group, content.address) != (group, address):
                raise IntegrityError(f"the index points at block {block}, which holds something else")
        known = {
            (content.group, content.parent, block)
            for contents in (self._content, self._shared)
            for block, content in enumerate(contents)
            if content is not None
        }
        listed = [(*key, block) for key, blocks in self._children.items() for block in blocks]
        if len(listed) != len(known) or set(listed) != known:
            raise IntegrityError("the index by parent does not match the cached content")
