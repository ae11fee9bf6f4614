"""Which blocks each request holds: one table for each group of layers, found in the prefix cache or taken anew.

The scheduler decides who runs; this decides where the keys and values lie. A window group's table holds the null
block where no later token looks any more: positions stay what they are, and the mask hides them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from engine.scheduling.block_pool import NULL_BLOCK, BlockCopy, BlockPool, hash_block
from engine.scheduling.cache_layout import blocks_for_sequence
from engine.scheduling.request import Request

SPARE_TOKENS = 512
"""So much room is left behind a prompt, where blocks are kept together: for the reply, and the next question."""


class BlockTables:
    """Books of all requests over one pool.

    Args:
        pool: the blocks.
        windows: for each group of layers how far a token sees, itself included; None for all.
    """

    def __init__(self, pool: BlockPool, windows: Sequence[int | None] = (None,)) -> None:
        self.pool = pool
        self.windows = tuple(windows)
        self._any_window = any(window is not None for window in windows)

    def max_blocks(self, num_tokens: int, max_new_tokens: int) -> int:
        """Blocks that one sequence holds at most while it grows to ``num_tokens``, ``max_new_tokens`` in a step."""
        return blocks_for_sequence(self.windows, num_tokens, max_new_tokens, self.pool.block_size)

    # -- beginning ----------------------------------------------------------------------------------------

    def attach(self, request: Request, *, reusable: int, budget: int) -> list[BlockCopy] | None:
        """Give a request its tables: what the cache holds of its tokens, and room for those of its first step.

        A group with full attention gets room for all its tokens, so that a prompt that has begun is not in want
        of it later; a window group, which gives blocks back as it goes, for the first ``budget`` tokens.

        Args:
            reusable: most tokens that may be taken from the cache.

        Returns:
            Copies that must be made before the step; None when there are not enough free blocks, and nothing
            was taken.
        """
        self._hash_known_tokens(request)
        size = self.pool.block_size
        full, tables = self._longest_match(request, reusable // size)
        rest = request.token_ids[full * size : min(reusable, (full + 1) * size)]
        found = [self._find_partial_block(request, group, full, rest) for group in range(len(self.windows))]
        rows = min(rows for _block, rows in found)
        sources = [block for block, _rows in found] if rows else []
        copies = self._take(request, tables, full, sources, rows, budget)
        if copies is None and sources:  # a source that nobody holds stands in the way of its own copy
            copies = self._take(request, tables, full, [], 0, budget)
        return copies

    def _find_partial_block(self, request: Request, group: int, index: int, token_ids: list[int]) -> tuple[int, int]:
        """See :meth:`BlockPool.find_partial_block`; of another user's block the shared tokens alone."""
        best = self.pool.find_partial_block(group, _parent(request, index, self.pool.block_size), token_ids)
        if not _is_divided(request, index, self.pool.block_size):
            return best
        shared = token_ids[: request.num_shared_tokens - index * self.pool.block_size]
        other = self.pool.find_partial_block(group, _shared_parent(request, index), shared)
        return max(best, other, key=itemgetter(1))

    def _longest_match(self, request: Request, max_blocks: int) -> tuple[int, list[list[int]]]:
        """The longest prefix of full blocks that every group has as far as it looks, and the tables for it."""
        size = self.pool.block_size
        addresses = request.block_hashes[:max_blocks]
        found = [[self.pool.find(group, address) for address in addresses] for group in range(len(self.windows))]
        num_matched = len(addresses)
        runs: list[tuple[int, list[int]]] = []  # window, and for each block how many before it are there too
        for window, blocks in zip(self.windows, found, strict=True):
            run = [0]
            for block in blocks:
                run.append(0 if block is None else run[-1] + 1)
            if window is None:
                num_matched = min(num_matched, run.index(0, 1) - 1 if 0 in run[1:] else len(addresses))
            else:
                runs.append((window, run))
        full = num_matched
        while any(run[full] < full - _first_seen(window, full * size, size) for window, run in runs):
            full -= 1
        tables = []
        for window, blocks in zip(self.windows, found, strict=True):
            first = 0 if window is None else _first_seen(window, full * size, size)
            tables.append([NULL_BLOCK] * first + [block for block in blocks[first:full] if block is not None])
        return full, tables

    def _take(
        self, request: Request, tables: list[list[int]], full: int, sources: list[int], rows: int, budget: int
    ) -> list[BlockCopy] | None:
        pool = self.pool
        computed = full * pool.block_size + rows
        wanted = self._wanted(request, full, computed, budget)
        matched = [block for table in tables for block in table if block != NULL_BLOCK]
        if sum(wanted) > pool.num_free_after_share([*matched, *sources]):
            return None
        pool.share(matched)
        copies: list[BlockCopy] = []
        taken_over = [pool.take_over(block, rows) for block in sources]
        # Held until all blocks are taken, so that none of them is a source. Copies come before anything is written.
        copied = [block for block, taken in zip(sources, taken_over, strict=True) if not taken]
        pool.share(copied)
        for group, count in enumerate(wanted):
            if sources and taken_over[group]:
                blocks = [sources[group], *pool.allocate_contiguous(count - 1, behind=sources[group])]
            else:
                last = tables[group][-1] if tables[group] else None
                blocks = pool.allocate_contiguous(count, behind=last, spare=SPARE_TOKENS // pool.block_size)
                if sources:
                    copies.append(BlockCopy(sources[group], blocks[0], rows))
            tables[group] += blocks
        pool.release(copied)
        request.tables = tables
        request.num_computed_tokens = computed
        request.num_registered_blocks = full
        return copies

    def can_fit_without(self, others: Iterable[Request], request: Request, *, reusable: int, budget: int) -> bool:
        """Whether :meth:`attach`, with the same arguments, finds enough blocks once others have released theirs."""
        self._hash_known_tokens(request)
        size = self.pool.block_size
        full, tables = self._longest_match(request, reusable // size)
        matched = {block for table in tables for block in table if block != NULL_BLOCK}
        holds = Counter(block for other in others for block in _held(other))
        freed = sum([self.pool.num_holders(block) == count for block, count in holds.items() if block not in matched])
        return sum(self._wanted(request, full, full * size, budget)) <= self.pool.num_free_after_share(matched) + freed

    def _wanted(self, request: Request, full: int, computed: int, budget: int) -> list[int]:
        """Blocks to be allocated in each group behind the first ``full``."""
        end = len(request.token_ids)
        return [
            self.pool.blocks_for(end if window is None else min(computed + budget, end)) - full
            for window in self.windows
        ]

    def fork(self, parent: Request, child: Request) -> None:
        """Let a child begin with all that its parent has computed. What both may still write is copied then."""
        for table in parent.tables:
            self.pool.share(block for block in table if block != NULL_BLOCK)
        child.tables = [list(table) for table in parent.tables]
        child.block_hashes = list(parent.block_hashes)
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_registered_blocks = parent.num_registered_blocks

    # -- growing ------------------------------------------------------------------------------------------

    def num_missing_blocks(self, request: Request, end: int) -> int:
        """Blocks to be allocated before the tokens up to ``end`` can be computed."""
        needed = self.pool.blocks_for(end)
        at, row = divmod(request.num_computed_tokens, self.pool.block_size)
        missing = 0
        for table in request.tables:
            if row and self.pool.is_shared(table[at]):  # to be copied, see :meth:`grow`
                missing += 1
            if needed > len(table):
                missing += needed - len(table)
        return missing

    def grow(self, request: Request, end: int) -> list[BlockCopy]:
        """Allocate what is :meth:`num_missing_blocks`; returns the copies that must be made before the step."""
        copies: list[BlockCopy] = []
        size = self.pool.block_size
        for group in self._to_copy(request):
            table = request.tables[group]
            at = request.num_computed_tokens // size
            (own,) = self.pool.allocate(1)
            copies.append(BlockCopy(table[at], own, request.num_computed_tokens % size))
            self.pool.release([table[at]])
            table[at] = own
        needed = self.pool.blocks_for(end)
        for table in request.tables:
            if needed > len(table):
                table += self.pool.allocate_contiguous(needed - len(table), behind=table[-1])
        return copies

    def _to_copy(self, request: Request) -> list[int]:
        """Groups whose next row lies in a block that others read too."""
        at, row = divmod(request.num_computed_tokens, self.pool.block_size)
        if row == 0:
            return []
        return [group for group, table in enumerate(request.tables) if self.pool.is_shared(table[at])]

    def advance(self, request: Request, num_computed_tokens: int) -> None:
        """Tokens were computed: make full blocks findable, and give back what no later token sees."""
        size = self.pool.block_size
        crosses = request.num_computed_tokens < request.num_shared_tokens <= num_computed_tokens
        request.num_computed_tokens = num_computed_tokens
        full = num_computed_tokens // size
        if full > request.num_registered_blocks and self.pool.enable_prefix_caching:
            self._hash_known_tokens(request)
            for index in range(request.num_registered_blocks, full):
                parent = _parent(request, index, size)
                tokens = request.token_ids[index * size : (index + 1) * size]
                for group, table in enumerate(request.tables):
                    if table[index] != NULL_BLOCK:
                        self.pool.register(table[index], group, parent, tokens, request.block_hashes[index])
            request.num_registered_blocks = full
        if crosses and self.pool.enable_prefix_caching:
            self._register_shared(request)
        if not self._any_window:
            return
        for window, table in zip(self.windows, request.tables, strict=True):
            if window is not None:
                index = _first_seen(window, num_computed_tokens, size) - 1
                unseen = []
                while index >= 0 and table[index] != NULL_BLOCK:
                    unseen.append(table[index])
                    table[index] = NULL_BLOCK
                    index -= 1
                self.pool.release(unseen)

    def _register_shared(self, request: Request) -> None:
        """Let every user find the shared tokens in the block that goes on with the user's own."""
        size = self.pool.block_size
        index, rows = divmod(request.num_shared_tokens, size)
        if not (rows and _is_divided(request, index, size)):
            return
        self._hash_known_tokens(request)
        tokens = request.token_ids[index * size : request.num_shared_tokens]
        for group, table in enumerate(request.tables):
            if table[index] != NULL_BLOCK:
                self.pool.register_shared(table[index], group, _shared_parent(request, index), tokens)

    # -- ending -------------------------------------------------------------------------------------------

    def release(self, request: Request, *, keep: bool = True) -> None:
        """Give back every block. With ``keep``, the last, not quite full one stays findable until it is reused."""
        at, rows = divmod(request.num_computed_tokens, self.pool.block_size)
        if keep and rows and request.tables and self.pool.enable_prefix_caching:
            parent = _parent(request, at, self.pool.block_size)
            tokens = request.token_ids[at * self.pool.block_size : request.num_computed_tokens]
            for group, table in enumerate(request.tables):
                self.pool.register_partial_block(table[at], group, parent, tokens)
        for table in request.tables:
            self.pool.release([block for block in table if block != NULL_BLOCK])
        request.tables = []
        request.num_computed_tokens = 0
        request.num_registered_blocks = 0

    def check(self, requests: Sequence[Request]) -> None:
        """Verify the pool's books against the tables (``IntegrityError`` if they disagree)."""
        self.pool.check(held_blocks(request) for request in requests)

    def _hash_known_tokens(self, request: Request) -> None:
        """Extend the addresses to all full blocks of the tokens known so far."""
        if not self.pool.enable_prefix_caching:
            return
        size = self.pool.block_size
        hashes = request.block_hashes
        tokens = request.token_ids
        for end in range((len(hashes) + 1) * size, len(tokens) + 1, size):
            hashes.append(hash_block(_parent(request, len(hashes), size), tokens[end - size : end]))


def _parent(request: Request, index: int, block_size: int) -> bytes:
    """What the hash of a request's block is chained to: the block before it.

    The first block with a token of the user's is chained to the user's salt as well, and so are all behind it.
    """
    parent = _shared_parent(request, index)
    return hash_block(parent + request.private_salt, ()) if _is_divided(request, index, block_size) else parent


def _shared_parent(request: Request, index: int) -> bytes:
    return request.block_hashes[index - 1] if index else request.cache_salt


def _is_divided(request: Request, index: int, block_size: int) -> bool:
    """It is the block in which the shared tokens end and the user's own begin."""
    return bool(request.private_salt) and index == request.num_shared_tokens // block_size


def held_blocks(request: Request) -> list[int]:
    """Every block of a request, in all groups."""
    return list(_held(request))


def _held(request: Request) -> Iterator[int]:
    for table in request.tables:
        for block in table:
            if block != NULL_BLOCK:
                yield block


def _first_seen(window: int, position: int, block_size: int) -> int:
    """Index of the first block that a query at ``position``, or any later one, looks at."""
    return max(0, position - window + 1) // block_size
