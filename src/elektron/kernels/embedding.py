"""The first step of an encoder: what a token is, where it stands and in which segment, added, normed and dropped out.

    x = word[token] + position[t] + segment[s]
    y = dropout(weight * (x - mean(x)) / sqrt(var(x) + epsilon) + bias)

Nothing is kept for the gradients: x is gathered and normed again. With g = weight * dy and n the normed x,

    dx = (g - mean(g) - n mean(g n)) / sqrt(var(x) + epsilon)

and dx is summed over all tokens of a word, a position, a segment. Words are the hard part: some occur once, some
thousands of times, and the order of the sum must not change between runs. So the tokens are sorted (chunks by counting,
then each chunk is searched for its place among the others), the sorted line is cut into short pieces, and a run of one
word is summed within each piece, then over the pieces.

Shapes in comments: B rows, T tokens of a row, N = B T lines, E embedding width, R lines and C columns of a tile.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.kernels.counters import dropout, keep_scales, token_dropout
from elektron.kernels.gpu import at_home, gradient, runs_on, tl, triton

_ROWS = 32  # of the batch, whose gradients at one position are summed by one program
_CHUNK = 1024  # tokens sorted by counting
_RANKED = 16  # tokens that a program finds places for
_PIECE = 32  # sorted tokens summed by one program
_BLOCK = 128  # partial sums added at a time


def embed(
    tokens: Tensor,
    segments: Tensor,
    word: Tensor,
    position: Tensor,
    segment: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    epsilon: float,
    rate: float,
    keys: Tensor | None,
) -> Tensor:
    """Tokens and segments [B, T] -> [B, T, E] in the type of the tables; the norm has its own. `keys` [B] are the
    rows' noise, None to drop nothing."""
    fits = word.shape[1] <= 4096 and len(segment) == 2 and len(word) < 2**31 // _CHUNK
    embedded = _Embedded.apply if runs_on(word) and fits else plainly_embedded
    return embedded(tokens, segments, word, position, segment, norm_weight, norm_bias, epsilon, rate, keys)


def plainly_embedded(
    tokens: Tensor,
    segments: Tensor,
    word: Tensor,
    position: Tensor,
    segment: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    epsilon: float,
    rate: float,
    keys: Tensor | None,
) -> Tensor:
    """The same; tokens may be vectors [B, T, E] already, and so may positions."""
    words = tokens if tokens.ndim == 3 else F.embedding(tokens, word)
    places = position if position.ndim == 3 else position[: tokens.shape[1]]
    x = words + places + F.embedding(segments, segment)  # [B, T, E]
    normed = F.layer_norm(x.to(norm_weight.dtype), norm_weight.shape, norm_weight, norm_bias, epsilon)
    return dropout(normed.to(word.dtype), rate, keys)


class _Embedded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        segments: Tensor,
        word: Tensor,
        position: Tensor,
        segment: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        epsilon: float,
        rate: float,
        keys: Tensor | None,
    ) -> Tensor:
        tokens, segments = tokens.contiguous(), segments.contiguous()
        keys = keys.contiguous() if keys is not None and rate else None
        tables = word, position, segment, norm_weight, norm_bias
        out = torch.empty(*tokens.shape, word.shape[1], dtype=word.dtype, device=word.device)
        ctx.save_for_backward(tokens, segments, *tables, keys)
        ctx.noise = epsilon, token_dropout(rate, keys)
        count, length = tokens.numel(), tokens.shape[1]
        tile = _tile(word)
        _embed_kernel[(triton.cdiv(count, tile["R"]),)](
            tokens, segments, *tables, keys, out, epsilon, count, length, **ctx.noise[1], **tile, num_warps=4
        )
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        tokens, segments, *tables, keys = ctx.saved_tensors
        d_out = gradients[0].contiguous()
        with at_home(d_out, tokens, segments, *([] if keys is None else [keys]), is_awaited=True):
            _Embedded._learn(ctx.noise, d_out, tokens, segments, tables, keys)
        return (None,) * 10

    @staticmethod
    def _learn(
        noise: tuple[float, dict[str, object]],
        d_out: Tensor,
        tokens: Tensor,
        segments: Tensor,
        tables: list[Tensor],
        keys: Tensor | None,
    ) -> None:
        height, length = tokens.shape
        count, width, device = tokens.numel(), d_out.shape[-1], d_out.device
        parts, pieces, rankers = (triton.cdiv(*pair) for pair in ((height, _ROWS), (count, _PIECE), (count, _RANKED)))
        dx = torch.empty_like(d_out)
        partials = torch.empty(4, length * parts, width, device=device)  # of weight, bias and the two segments
        chunks, ranked = torch.empty(2, 2, count, dtype=torch.int32, device=device)  # tokens and their lines
        edges = torch.empty(pieces, 2, width, device=device)
        _gradient_kernel[(rankers + length * parts,)](
            *(tokens, segments, *tables, keys, d_out, dx, partials, chunks, noise[0], height, length),
            **noise[1],
            **_tile(d_out),
            ROWS=_ROWS,
            PARTS=parts,
            CHUNK=_CHUNK,
            RANKED=_RANKED,
            num_warps=8,
        )
        _rank_kernel[(rankers,)](
            *(chunks, ranked, count),
            CHUNK=_CHUNK,
            LEVELS=_CHUNK.bit_length(),
            RANKED=_RANKED,
            AT_ONCE=16,
            num_warps=4,
        )
        d_word, *others = map(gradient, tables)
        columns = min(_tile(d_out)["C"], 128)
        _piece_kernel[(pieces, triton.cdiv(width, columns))](
            ranked, dx, d_word, edges, count, E=width, C=columns, PIECE=_PIECE, num_warps=4
        )
        _total_kernel[(pieces + length + 4, triton.cdiv(width, 32))](
            *(ranked, edges, partials, d_word, *others, count, pieces, length),
            E=width,
            PIECE=_PIECE,
            PARTS=parts,
            PADDED=triton.next_power_of_2(parts),
            BLOCK=_BLOCK,
            C=32,
            num_warps=4,
        )


def _tile(lines: Tensor) -> dict[str, int]:
    """R lines of E elements, padded to C, for one program to hold."""
    width = lines.shape[-1]
    columns = max(16, triton.next_power_of_2(width))
    return {"E": width, "C": columns, "R": min(_ROWS, max(1, 4096 // columns))}


@triton.jit
def _normed(tokens, segments, word, position, segment, lines, inside, columns, epsilon, T, E: tl.constexpr):
    """Normed sums [R, C], without weight and bias, and what they were multiplied by [R, 1]."""
    here = inside[:, None] & (columns < E)[None, :]
    token = tl.load(tokens + lines, inside, 0)[:, None]  # int64
    side = tl.load(segments + lines, inside, 0)[:, None]
    x = tl.load(word + token * E + columns, here, 0).to(tl.float32)
    x += tl.load(position + (lines % T)[:, None] * E + columns, here, 0).to(tl.float32)
    x += tl.load(segment + side * E + columns, here, 0).to(tl.float32)
    centred = tl.where(here, x - tl.sum(x, 1, keep_dims=True) / E, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1, keep_dims=True) / E + epsilon)
    return centred * scale, scale


@triton.jit
def _embed_kernel(
    tokens, segments, word, position, segment, norm_weight, norm_bias, keys, out,
    epsilon, count, T, DROPS: tl.constexpr, LIMIT: tl.constexpr, KEPT_SCALE: tl.constexpr,
    E: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    lines = tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.arange(0, C)
    inside = lines < count
    normed, _ = _normed(tokens, segments, word, position, segment, lines, inside, columns, epsilon, T, E)
    weight = tl.load(norm_weight + columns, columns < E, 0)
    y = normed * weight + tl.load(norm_bias + columns, columns < E, 0)
    if DROPS:
        y *= keep_scales(keys, tl.minimum(lines, count - 1), columns, T, E, LIMIT, KEPT_SCALE)
    here = inside[:, None] & (columns < E)[None, :]
    tl.store(out + lines.to(tl.int64)[:, None] * E + columns, y.to(out.dtype.element_ty), here)


@triton.jit
def _gradient_kernel(
    tokens, segments, word, position, segment, norm_weight, norm_bias, keys, d_out, dx, partials, chunks,
    epsilon, height, T, DROPS: tl.constexpr, LIMIT: tl.constexpr, KEPT_SCALE: tl.constexpr,
    E: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
    ROWS: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr, RANKED: tl.constexpr,
):  # fmt: skip
    """Two tasks that need nothing of each other, in one launch: some programs begin to sort the tokens, the others have
    ROWS rows of the batch at one position each: dx and partial sums."""
    rankers = tl.cdiv(height * T, RANKED)
    program = tl.program_id(0)
    if program < rankers:
        _count_within_a_chunk(tokens, chunks, program, height * T, CHUNK, RANKED)
    else:
        part = (program - rankers) % PARTS
        place = (program - rankers) // PARTS
        columns = tl.arange(0, C)
        weight = tl.load(norm_weight + columns, columns < E, 0)
        d_weight = tl.zeros([R, C], tl.float32)
        d_bias = tl.zeros([R, C], tl.float32)
        d_first = tl.zeros([R, C], tl.float32)
        d_second = tl.zeros([R, C], tl.float32)
        for start in range(0, ROWS, R):
            rows = part * ROWS + start + tl.arange(0, R)
            inside = rows < height
            here = inside[:, None] & (columns < E)[None, :]
            lines = rows * T + place
            at = lines.to(tl.int64)[:, None] * E + columns
            dy = tl.load(d_out + at, here, 0).to(tl.float32)
            if DROPS:
                dy *= keep_scales(keys, tl.minimum(lines, height * T - 1), columns, T, E, LIMIT, KEPT_SCALE)
            normed, scale = _normed(tokens, segments, word, position, segment, lines, inside, columns, epsilon, T, E)
            g = dy * weight
            along = tl.sum(g * normed, 1, keep_dims=True) / E
            d = (g - tl.sum(g, 1, keep_dims=True) / E - normed * along) * scale
            d = tl.where(here, d, 0.0)
            tl.store(dx + at, d.to(dx.dtype.element_ty), here)
            second = (tl.load(segments + lines, inside, 0) == 1)[:, None]
            d_weight += dy * normed
            d_bias += dy
            d_first += tl.where(second, 0.0, d)
            d_second += tl.where(second, d, 0.0)
        line = partials + (program - rankers).to(tl.int64) * E + columns
        tl.store(line, tl.sum(d_weight, 0), columns < E)
        tl.store(line + T * PARTS * E, tl.sum(d_bias, 0), columns < E)
        tl.store(line + 2 * T * PARTS * E, tl.sum(d_first, 0), columns < E)
        tl.store(line + 3 * T * PARTS * E, tl.sum(d_second, 0), columns < E)


@triton.jit
def _count_within_a_chunk(tokens, chunks, program, count, CHUNK: tl.constexpr, RANKED: tl.constexpr):
    """A token's place in its sorted chunk: how many of the chunk come before it, by word and then by line."""
    first = program * RANKED // CHUNK * CHUNK
    lines = program * RANKED + tl.arange(0, RANKED)
    token = tl.load(tokens + lines, lines < count, 0).to(tl.int32)
    key = (token * CHUNK + lines - first)[:, None]
    others = first + tl.arange(0, CHUNK)
    other = tl.load(tokens + others, others < count, 0).to(tl.int32) * CHUNK + others - first
    other = tl.where(others < count, other, 2**31 - 1)
    place = first + tl.sum((other[None, :] < key).to(tl.int32), 1)
    tl.store(chunks + place, token, lines < count)
    tl.store(chunks + count + place, lines, lines < count)


@triton.jit
def _rank_kernel(
    chunks, ranked, count,
    CHUNK: tl.constexpr, LEVELS: tl.constexpr, RANKED: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """From sorted chunks to one sorted line: a token stands behind all smaller ones, and behind the equal ones of
    earlier chunks. Each chunk is searched for their number, by halving."""
    places = tl.program_id(0) * RANKED + tl.arange(0, RANKED)
    inside = places < count
    token = tl.load(chunks + places, inside, 0)
    own = (places // CHUNK)[:, None]
    rank = places % CHUNK
    for first in tl.range(0, tl.cdiv(count, CHUNK), AT_ONCE):
        chunk = (first + tl.arange(0, AT_ONCE))[None, :]
        size = tl.minimum(count - chunk * CHUNK, CHUNK)
        above = token[:, None] + (chunk < own).to(tl.int32)
        smaller = tl.zeros([RANKED, AT_ONCE], tl.int32)
        for level in tl.static_range(LEVELS):
            probe = smaller + (CHUNK >> level)
            exists = (probe <= size) & inside[:, None]
            other = tl.load(chunks + chunk * CHUNK + probe - 1, exists, 2**31 - 1)
            smaller = tl.where(exists & (other < above), probe, smaller)
        rank += tl.sum(tl.where(chunk == own, 0, smaller), 1)
    tl.store(ranked + rank, token, inside)
    tl.store(ranked + count + rank, tl.load(chunks + count + places, inside, 0), inside)


@triton.jit
def _piece_kernel(ranked, dx, d_word, edges, count, E: tl.constexpr, C: tl.constexpr, PIECE: tl.constexpr):
    """Sums of the runs of equal words in one piece of the sorted tokens. A run that the piece holds whole is added to
    the word's gradient; one that began before is edges[piece, 0], one that begins here and goes on edges[piece, 1]."""
    piece = tl.program_id(0)
    columns = tl.program_id(1) * C + tl.arange(0, C)
    start = piece * PIECE
    places = start + tl.arange(0, PIECE)
    inside = places < count
    token = tl.load(ranked + places, inside, -1)
    before = tl.load(ranked + places - 1, inside & (places > 0), -1)
    line = tl.load(ranked + count + places, inside, 0).to(tl.int64)[:, None]
    d = tl.load(dx + line * E + columns, inside[:, None] & (columns < E)[None, :], 0)
    equal = (token[:, None] == token[None, :]).to(d.dtype)
    sums = tl.dot(equal, d, input_precision="ieee")  # of each one's run: products with 0 and 1 are exact

    came = token == tl.load(ranked + start - 1, start > 0, -1)
    goes = token == tl.load(ranked + start + PIECE, start + PIECE < count, -1)
    heads = inside & ((token != before) | (places == start))
    whole = (heads & ~came & ~goes)[:, None] & (columns < E)[None, :]
    total = d_word + token.to(tl.int64)[:, None] * E + columns
    tl.store(total, tl.load(total, whole, 0) + sums, whole)
    edge = edges + (piece * 2 + tl.where(came, 0, 1)).to(tl.int64)[:, None] * E + columns
    tl.store(edge, sums, (heads & (came | goes))[:, None] & (columns < E)[None, :])


@triton.jit
def _total_kernel(
    ranked, edges, partials, d_word, d_position, d_segment, d_weight, d_bias, count, pieces, T,
    E: tl.constexpr, PIECE: tl.constexpr,
    PARTS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """All sums over programs: of a piece's run that goes on, a position, or one of the four lines of `partials`."""
    program = tl.program_id(0)
    columns = tl.program_id(1) * C + tl.arange(0, C)
    if program < pieces:
        _add_run(ranked, edges, d_word, program, columns, count, pieces, E, PIECE, BLOCK)
    elif program < pieces + T:
        _add_position(partials, d_position, program - pieces, columns, T, E, PARTS, PADDED)
    else:
        which = program - pieces - T
        line = d_segment + (which - 2) * E
        if which == 0:
            line = d_weight
        elif which == 1:
            line = d_bias
        _add_parts(partials + (which * T * PARTS).to(tl.int64) * E, line, columns, T * PARTS, E, BLOCK)


@triton.jit
def _add(line, sums, columns, E: tl.constexpr):
    tl.store(line + columns, tl.load(line + columns, columns < E, 0) + sums, columns < E)


@triton.jit
def _add_run(
    ranked, edges, d_word, piece, columns, count, pieces, E: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr
):
    """The run that begins in a piece and goes on in the next ones."""
    following = (piece + 1) * PIECE
    token = tl.load(ranked + tl.minimum(following, count) - 1)
    goes = token == tl.load(ranked + following, following < count, -1)
    came = token == tl.load(ranked + piece * PIECE - 1, piece > 0, -1)
    more = goes & ~came
    if more:
        sums = tl.load(edges + (piece * 2 + 1).to(tl.int64) * E + columns, columns < E, 0)
        first = piece + 1
        while more:
            next_ones = first + tl.arange(0, BLOCK)
            same = token == tl.load(ranked + next_ones * PIECE, next_ones < pieces, -1)
            at = edges + (next_ones * 2).to(tl.int64)[:, None] * E + columns
            sums += tl.sum(tl.load(at, same[:, None] & (columns < E)[None, :], 0), 0)
            more = tl.sum(same.to(tl.int32), 0) == BLOCK
            first += BLOCK
        _add(d_word + token.to(tl.int64) * E, sums, columns, E)


@triton.jit
def _add_position(partials, d_position, place, columns, T, E: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr):
    """What stood at a position was in the first segment or in the second."""
    part = tl.arange(0, PADDED)
    at = partials + (2 * T * PARTS + place * PARTS + part).to(tl.int64)[:, None] * E + columns
    within = (part < PARTS)[:, None] & (columns < E)[None, :]
    sums = tl.load(at, within, 0) + tl.load(at + T * PARTS * E, within, 0)
    _add(d_position + place * E, tl.sum(sums, 0), columns, E)


@triton.jit
def _add_parts(parts, line, columns, count, E: tl.constexpr, BLOCK: tl.constexpr):
    sums = tl.zeros([BLOCK, columns.shape[0]], tl.float32)
    for start in tl.range(0, count, BLOCK):
        part = start + tl.arange(0, BLOCK)
        at = parts + part.to(tl.int64)[:, None] * E + columns
        sums += tl.load(at, (part < count)[:, None] & (columns < E)[None, :], 0)
    _add(line, tl.sum(sums, 0), columns, E)
