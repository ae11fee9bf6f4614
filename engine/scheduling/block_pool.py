"""The pool of KV blocks: allocate, share, free, find by content. No torch; the tensors live in the runner.

A block holds the keys and values of ``block_size`` consecutive tokens in every layer. A *full* block is
addressed by its content: the hash of its tokens chained to the hash of the block before it, so equal hash
means equal prefix. A freed block keeps its hash until it is handed out again; until then another request
that begins alike takes it back from the free list (the idea is vLLM's and nano-vllm's).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

NULL_BLOCK = 0
"""Block 0 is never handed out: block tables are padded with it, so that padding always points at valid memory."""

MAX_SCANNED_BLOCKS = 4096
"""So many blocks are passed to find room for a run of them."""

MAX_PARTIAL_CANDIDATES = 16
"""So many of the latest blocks behind a common beginning are compared token by token."""


class IntegrityError(AssertionError):
    """The pool's books do not add up: a defect of the engine, never of a request."""


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Content address of a full block: 16 bytes of BLAKE2b over the parent's address and the tokens."""
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Rows to be copied, in all layers of the block's group, before the step that carries the copy computes."""

    source: int
    destination: int
    num_rows: int  #: from the first on


@dataclass(frozen=True, slots=True)
class _Content:
    """What is known of a block's rows, from the first on."""

    group: int
    parent: bytes  #: address of the block before it
    token_ids: tuple[int, ...]
    address: bytes | None  #: of a full block


class BlockPool:
    """Reference-counted KV blocks with an index by content: full blocks by address, beginnings by their parent.

    A block belongs to one group of layers at a time; content is looked for within a group.

    Args:
        num_blocks: size of the pool, the null block included; at least 2.
        block_size: tokens per block.
        enable_prefix_caching: when off, nothing is indexed and nothing is found.
        contiguous: the kernel reads blocks faster that lie behind one another, see :meth:`allocate_contiguous`.
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
        # What every user may find of a block whose other rows are one user's; see :meth:`register_shared`.
        self._shared: list[_Content | None] = [None] * num_blocks
        self._block_of: dict[tuple[int, bytes], int] = {}
        self._children: dict[tuple[int, bytes], dict[int, None]] = {}  # by parent, oldest first
        # Least recently freed first: those are reused, and lose their content, first.
        self._free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(1, num_blocks))
        self._num_freed = 0
        self._freed_at = [0] * num_blocks  # by that count
        self._scan_start = 1  # where room for a run is looked for

    @property
    def num_usable(self) -> int:
        """Blocks that requests can hold (all but the null block)."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, cached content included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the usable blocks held by requests, 0 to 1."""
        return 1.0 - self.num_free / self.num_usable

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks ``num_tokens`` tokens occupy."""
        return -(-num_tokens // self.block_size)

    def find(self, group: int, address: bytes) -> int | None:
        """The full block with this content. Takes no reference."""
        return self._block_of.get((group, address))

    def find_partial_block(self, group: int, parent: bytes, token_ids: Sequence[int]) -> tuple[int, int]:
        """A block behind ``parent``, full or not, that begins with as many of these tokens as possible.

        Returns:
            The block and the number of its first rows that hold these tokens; 0 rows when there is none. Takes no
            reference.
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
        """Free blocks that would remain if these cached blocks were taken."""
        return self.num_free - sum(1 for block in blocks if self._ref_counts[block] == 0)

    def share(self, blocks: Iterable[int]) -> None:
        """Take one more reference on each block."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                del self._free[block]
            self._ref_counts[block] += 1

    def num_holders(self, block: int) -> int:
        return self._ref_counts[block]

    def is_shared(self, block: int) -> bool:
        """More than one holds it: its rows must not change."""
        return self._ref_counts[block] > 1

    def take_over(self, block: int, num_rows: int) -> bool:
        """Take a free block whose content is exactly its first ``num_rows`` rows, to go on writing behind them.

        False when it is held by somebody, or holds more that others may look for.
        """
        content = self._content[block]
        if self._ref_counts[block] or content is None or content.address or len(content.token_ids) != num_rows:
            return False
        del self._free[block]
        shared = self._shared[block]
        self._evict(block)
        self._ref_counts[block] = 1
        if shared is not None:  # those rows stay as they are
            self._index_shared(block, shared)
        return True

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks, forgetting what they cached.

        Raises:
            IndexError: fewer are free. Callers check :attr:`num_free` first.
        """
        if count > len(self._free):
            raise IndexError(f"{count} blocks asked for, {len(self._free)} free")
        blocks = list(islice(self._free, count))
        self._hand_out(blocks)
        return blocks

    def allocate_contiguous(self, count: int, *, behind: int | None = None, spare: int = 0) -> list[int]:
        """Take ``count`` blocks that lie behind one another, as far as that costs nothing that others may look for.

        With :attr:`contiguous` only; else, and where there is no room, as :meth:`allocate`.

        Args:
            behind: the block that the first of them follows, if there is one.
            spare: so many blocks behind the run are left to it, for the time when it grows.

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
        """The first of ``count`` stale blocks behind one another, looked for from where the last ones were found.

        Going round in this way, what was written longest ago is met first. Of each place the last block is looked at
        first: where that is taken, none of the places that hold it has to be looked at.
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
        """The last of these blocks that is not stale."""
        counts, content, freed_at = self._ref_counts, self._content, self._freed_at
        stale_since = self._num_freed - len(self._free) // 2
        for block in range(end - 1, start - 1, -1):
            if counts[block] or (content[block] is not None and freed_at[block] > stale_since):
                return block
        return None

    def _is_stale(self, block: int) -> bool:
        """Free, and empty or freed longer ago than half of the free ones: its content would go soon anyway."""
        return self._last_taken(block, block + 1) is None

    def _hand_out(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            del self._free[block]
            self._evict(block)
            self._ref_counts[block] = 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one reference on each block of a sequence.

        The tail is freed first, so that under pressure a sequence loses its end before its beginning, which
        is the part that others are likely to share.
        """
        for block in reversed(blocks):
            count = self._ref_counts[block]
            if count <= 0:
                raise IntegrityError(f"block {block} is freed but nobody holds it")
            self._ref_counts[block] = count - 1
            if count == 1:
                self._free[block] = None
                self._num_freed += 1
                self._freed_at[block] = self._num_freed

    def register(self, block: int, group: int, parent: bytes, token_ids: Sequence[int], address: bytes) -> None:
        """Index a full block under its address. The first block with a given content stays the indexed one."""
        if not self.enable_prefix_caching or (group, address) in self._block_of:
            return
        self._evict_own(block)  # what was known of its first rows
        self._index(block, _Content(group, parent, tuple(token_ids), address))
        self._block_of[group, address] = block

    def register_partial_block(self, block: int, group: int, parent: bytes, token_ids: Sequence[int]) -> None:
        """Make the first rows of a block findable, unless another offers as much."""
        content = self._content[block]
        if content is not None and (content.address or len(content.token_ids) >= len(token_ids)):
            return
        _block, rows = self.find_partial_block(group, parent, token_ids)
        if rows < len(token_ids):
            self._evict_own(block)
            self._index(block, _Content(group, parent, tuple(token_ids), None))

    def register_shared(self, block: int, group: int, parent: bytes, token_ids: Sequence[int]) -> None:
        """Make the first rows of a block findable under a parent of their own, unless another offers as much.

        For a block that begins with tokens that every user may find, and goes on with those of one user.
        """
        _block, rows = self.find_partial_block(group, parent, token_ids)
        if self.enable_prefix_caching and rows < len(token_ids) and self._shared[block] is None:
            self._index_shared(block, _Content(group, parent, tuple(token_ids), None))

    def evict(self, blocks: Iterable[int]) -> list[int]:
        """Forget the content of those blocks that nobody holds any more, and return them."""
        free = [block for block in blocks if self._ref_counts[block] == 0]
        for block in free:
            self._evict(block)
        return free

    def reset_prefix_cache(self) -> None:
        """Drop all cached content (not the references), as when the tensors are replaced."""
        self._block_of.clear()
        self._children.clear()
        self._content = [None] * self.num_blocks
        self._shared = [None] * self.num_blocks

    def _index(self, block: int, content: _Content) -> None:
        if self.enable_prefix_caching:
            shared = self._shared[block]
            if shared is not None and (shared.group, shared.parent) == (content.group, content.parent):
                self._evict_shared(block)  # the same rows begin this content, which all may find as well
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
            self._unlist(block, shared)

    def _evict_own(self, block: int) -> None:
        content = self._content[block]
        if content is None:
            return
        self._content[block] = None
        if content.address is not None:
            del self._block_of[content.group, content.address]
        self._unlist(block, content)

    def _unlist(self, block: int, content: _Content) -> None:
        siblings = self._children[content.group, content.parent]
        del siblings[block]
        if not siblings:
            del self._children[content.group, content.parent]

    def check(self, holders: Iterable[Sequence[int]] = ()) -> None:
        """Verify the books against what requests say they hold.

        Args:
            holders: the block tables of every request that holds blocks; none when the engine is idle.

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
                    f"block {block} counts {self._ref_counts[block]} holders, but {expected[block]} hold it"
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
            raise IntegrityError("the lists of blocks behind one another do not hold what is known")
