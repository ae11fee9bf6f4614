"""Block tables of requests, one for each layer group: blocks from the prefix cache, or newly allocated ones.

The scheduler decides which requests run; this module decides where their keys and values are stored. In the table of a
sliding-window group, the null block replaces blocks that no later token attends to: positions keep their place in the
table, and the attention mask hides them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from engine.scheduling.block_pool import NULL_BLOCK, BlockCopy, BlockPool, hash_block
from engine.scheduling.cache_layout import blocks_for_sequence
from engine.scheduling.request import Request

SPARE_TOKENS = 512
"""Tokens of space left after a prompt where blocks are allocated contiguously: for the reply and the next message."""


class BlockTables:
    """Manages the block tables of all requests over one pool.

    Args:
        pool: the KV blocks.
        windows: attention window of each layer group in tokens, the token itself included; None for full attention.
    """

    def __init__(self, pool: BlockPool, windows: Sequence[int | None] = (None,)) -> None:
        self.pool = pool
        self.windows = tuple(windows)
        self.unusable_blocks: list[int] = []  #: free blocks whose content may be NaN, see :meth:`release`
        self._any_window = any(window is not None for window in windows)

    def max_blocks(self, num_tokens: int, max_new_tokens: int) -> int:
        """Returns the maximum number of blocks that a sequence holds while it grows to ``num_tokens``.

        Args:
            max_new_tokens: maximum number of tokens computed in one step.
        """
        return blocks_for_sequence(self.windows, num_tokens, max_new_tokens, self.pool.block_size)

    # -- start --------------------------------------------------------------------------------------------

    def attach(self, request: Request, *, reusable: int, budget: int) -> list[BlockCopy] | None:
        """Gives a request its block tables: cached blocks of its prefix, and new blocks for its first step.

        A full-attention group gets blocks for all tokens, so that a started prompt never lacks them later. A
        sliding-window group, which releases blocks as it advances, gets those for the first ``budget`` tokens only.

        Args:
            reusable: maximum number of tokens to take from the cache.
            budget: maximum number of tokens in the first step.

        Returns:
            Copies to make before the step; None if there are not enough free blocks, in which case nothing is taken.
        """
        self._hash_full_blocks(request)
        size = self.pool.block_size
        full, tables = self._longest_match(request, reusable // size)
        rest = request.token_ids[full * size : min(reusable, (full + 1) * size)]
        found = [self._find_partial_block(request, group, full, rest) for group in range(len(self.windows))]
        rows = min(rows for _block, rows in found)
        sources = [block for block, _rows in found] if rows else []
        copies = self._take(request, tables, full, sources, rows, budget)
        if copies is None and sources:  # a free source block is kept for its copy, and may be the one that is missing
            copies = self._take(request, tables, full, [], 0, budget)
        return copies

    def _find_partial_block(self, request: Request, group: int, index: int, token_ids: list[int]) -> tuple[int, int]:
        """See :meth:`BlockPool.find_partial_block`. In other users' blocks, only shared tokens are found."""
        best = self.pool.find_partial_block(group, _parent(request, index, self.pool.block_size), token_ids)
        if not _is_boundary_block(request, index, self.pool.block_size):
            return best
        shared = token_ids[: request.num_shared_tokens - index * self.pool.block_size]
        other = self.pool.find_partial_block(group, _shared_parent(request, index), shared)
        return max(best, other, key=itemgetter(1))

    def _longest_match(self, request: Request, max_blocks: int) -> tuple[int, list[list[int]]]:
        """Finds the longest prefix of full blocks of which every group has cached what its window covers.

        Returns:
            The number of blocks in the prefix, and each group's table for it.
        """
        size = self.pool.block_size
        addresses = request.block_hashes[:max_blocks]
        found = [[self.pool.find(group, address) for address in addresses] for group in range(len(self.windows))]
        num_matched = len(addresses)
        runs: list[tuple[int, list[int]]] = []  # window, and the number of cached blocks before block n, for each n
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
        """Takes the matched blocks of ``tables``, the first ``rows`` rows of ``sources``, and new blocks for the rest.

        See :meth:`attach`, which returns the same.
        """
        pool = self.pool
        computed = full * pool.block_size + rows
        num_new_blocks = self._num_new_blocks(request, full, computed, budget)
        matched = [block for table in tables for block in table if block != NULL_BLOCK]
        if sum(num_new_blocks) > pool.num_free_after_share([*matched, *sources]):
            return None
        pool.share(matched)
        copies: list[BlockCopy] = []
        taken_over = [pool.take_over(block, rows) for block in sources]
        # Sources are held until all blocks are allocated, so that none of them is allocated itself. They may be
        # released then, since copies are made before anything is written.
        copied = [block for block, taken in zip(sources, taken_over, strict=True) if not taken]
        pool.share(copied)
        for group, count in enumerate(num_new_blocks):
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
        """Whether :meth:`attach`, with the same arguments, has enough blocks once ``others`` have released theirs."""
        self._hash_full_blocks(request)
        size = self.pool.block_size
        full, tables = self._longest_match(request, reusable // size)
        matched = {block for table in tables for block in table if block != NULL_BLOCK}
        holds = Counter(block for other in others for block in _held(other))
        freed = sum([self.pool.num_holders(block) == count for block, count in holds.items() if block not in matched])
        return (
            sum(self._num_new_blocks(request, full, full * size, budget))
            <= self.pool.num_free_after_share(matched) + freed
        )

    def _num_new_blocks(self, request: Request, full: int, computed: int, budget: int) -> list[int]:
        """Returns how many blocks to allocate in each group after the first ``full`` blocks."""
        end = len(request.token_ids)
        return [
            self.pool.blocks_for(end if window is None else min(computed + budget, end)) - full
            for window in self.windows
        ]

    def fork(self, parent: Request, child: Request) -> None:
        """Shares all blocks of a parent with its child. The block that both go on writing is copied by :meth:`grow`."""
        for table in parent.tables:
            self.pool.share(block for block in table if block != NULL_BLOCK)
        child.tables = [list(table) for table in parent.tables]
        child.block_hashes = list(parent.block_hashes)
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_registered_blocks = parent.num_registered_blocks

    def reassign(self, requests: Sequence[Request], parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Gives each request the tokens of one of them, all computed, with a new token behind, and shares its blocks.

        A request whose parent has no blocks has none then either.

        Args:
            parents: for each request, the index of the one that it continues.
            tokens: for each request, its new token.
        """
        old_tables = [request.tables for request in requests]
        old_tokens = [list(request.token_ids) for request in requests]
        state = [
            (request.block_hashes, request.num_computed_tokens, request.num_registered_blocks) for request in requests
        ]
        for request, parent, token in zip(requests, parents, tokens, strict=True):
            hashes, num_computed_tokens, num_registered_blocks = state[parent]
            for table in old_tables[parent]:
                self.pool.share(block for block in table if block != NULL_BLOCK)
            request.tables = [list(table) for table in old_tables[parent]]
            request.token_ids[:] = [*old_tokens[parent], token]
            request.block_hashes = hashes[: len(old_tokens[parent]) // self.pool.block_size]
            request.num_computed_tokens = num_computed_tokens
            request.num_registered_blocks = num_registered_blocks
        for tables in old_tables:
            for table in tables:
                self.pool.release([block for block in table if block != NULL_BLOCK])

    # -- growth -------------------------------------------------------------------------------------------

    def num_missing_blocks(self, request: Request, end: int) -> int:
        """Returns how many blocks must be allocated before the tokens up to ``end`` can be computed."""
        needed = self.pool.blocks_for(end)
        at, row = divmod(request.num_computed_tokens, self.pool.block_size)
        missing = 0
        for table in request.tables:
            if row and self.pool.is_shared(table[at]):  # copied on write, see :meth:`grow`
                missing += 1
            if needed > len(table):
                missing += needed - len(table)
        return missing

    def grow(self, request: Request, end: int) -> list[BlockCopy]:
        """Allocates the blocks counted by :meth:`num_missing_blocks`. Returns the copies to make before the step."""
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
        """Returns the groups whose next row is in a shared block, which must be copied before it is written."""
        at, row = divmod(request.num_computed_tokens, self.pool.block_size)
        if row == 0:
            return []
        return [group for group, table in enumerate(request.tables) if self.pool.is_shared(table[at])]

    def advance(self, request: Request, num_computed_tokens: int) -> None:
        """Records computed tokens: registers full blocks in the prefix cache, and releases those outside a window."""
        size = self.pool.block_size
        crosses = request.num_computed_tokens < request.num_shared_tokens <= num_computed_tokens
        request.num_computed_tokens = num_computed_tokens
        full = num_computed_tokens // size
        if full > request.num_registered_blocks and self.pool.enable_prefix_caching:
            self._hash_full_blocks(request)
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
        """Registers the shared tokens of the block that continues with the user's own, for every user to find."""
        size = self.pool.block_size
        index, rows = divmod(request.num_shared_tokens, size)
        if not (rows and _is_boundary_block(request, index, size)):
            return
        self._hash_full_blocks(request)
        tokens = request.token_ids[index * size : request.num_shared_tokens]
        for group, table in enumerate(request.tables):
            if table[index] != NULL_BLOCK:
                self.pool.register_shared(table[index], group, _shared_parent(request, index), tokens)

    # -- end ----------------------------------------------------------------------------------------------

    def release(self, request: Request, *, keep: bool = True) -> None:
        """Releases every block.

        Args:
            keep: cache the last, partial block too, until it is allocated again. False where the content may be
                unusable: then nothing that only this request held stays cached, see :attr:`unusable_blocks`.
        """
        at, rows = divmod(request.num_computed_tokens, self.pool.block_size)
        if keep and rows and request.tables and self.pool.enable_prefix_caching:
            parent = _parent(request, at, self.pool.block_size)
            tokens = request.token_ids[at * self.pool.block_size : request.num_computed_tokens]
            for group, table in enumerate(request.tables):
                self.pool.register_partial_block(table[at], group, parent, tokens)
        held = held_blocks(request)
        for table in request.tables:
            self.pool.release([block for block in table if block != NULL_BLOCK])
        if not keep:
            self.unusable_blocks += self.pool.evict(held)
        request.tables = []
        request.num_computed_tokens = 0
        request.num_registered_blocks = 0

    def check(self, requests: Sequence[Request]) -> None:
        """Verifies the pool against the tables of ``requests``.

        Raises:
            IntegrityError: they disagree.
        """
        self.pool.check(held_blocks(request) for request in requests)

    def _hash_full_blocks(self, request: Request) -> None:
        """Extends the request's block hashes to all full blocks of its tokens so far."""
        if not self.pool.enable_prefix_caching:
            return
        size = self.pool.block_size
        hashes = request.block_hashes
        tokens = request.token_ids
        for end in range((len(hashes) + 1) * size, len(tokens) + 1, size):
            hashes.append(hash_block(_parent(request, len(hashes), size), tokens[end - size : end]))


def _parent(request: Request, index: int, block_size: int) -> bytes:
    """Returns what the hash of a request's block is chained to: the hash of the block before it.

    The first block with a user's own token is chained to the user's salt as well, and thereby all later blocks are.
    """
    parent = _shared_parent(request, index)
    return hash_block(parent + request.private_salt, ()) if _is_boundary_block(request, index, block_size) else parent


def _shared_parent(request: Request, index: int) -> bytes:
    return request.block_hashes[index - 1] if index else request.cache_salt


def _is_boundary_block(request: Request, index: int, block_size: int) -> bool:
    """Whether this is the block in which the shared tokens end and the user's own begin."""
    return bool(request.private_salt) and index == request.num_shared_tokens // block_size


def held_blocks(request: Request) -> list[int]:
    """Returns every block of a request, in all groups."""
    return list(_held(request))


def _held(request: Request) -> Iterator[int]:
    for table in request.tables:
        for block in table:
            if block != NULL_BLOCK:
                yield block


def _first_seen(window: int, position: int, block_size: int) -> int:
    """Returns the index of the first block that a query at ``position``, or at any later one, attends to."""
    return max(0, position - window + 1) // block_size
