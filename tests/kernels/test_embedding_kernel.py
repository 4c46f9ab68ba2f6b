import pytest
import torch

from elektron.kernels import embedding
from elektron.kernels.counters import row_keys
from elektron.kernels.embedding import _Embedded, embed, plainly_embedded
from elektron.kernels.gpu import gradient

DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
EPSILON = 1e-12


def tables(size, longest, width, dtype, device):
    """Word, position, segment, and the norm's two; the gradients are not zero at first."""
    matrices = [torch.randn(count, width).to(device, dtype) for count in (size, longest, 2)]
    parameters = [*matrices, torch.rand(width, device=device) + 0.5, torch.randn(width, device=device)]
    for parameter in parameters:
        parameter.requires_grad_().grad_dtype = torch.float32
        parameter.grad = torch.ones_like(parameter, dtype=torch.float32)
    return parameters


def run(function, tokens, segments, parameters, rate, keys):
    word, position, segment, weight, bias = parameters
    return function(tokens, segments, word, position, segment, weight, bias, EPSILON, rate, keys)


def rows(height, length, size, device):
    """A few words are frequent, one of them very."""
    tokens = torch.randint(size, (height, length))
    tokens = torch.where(torch.rand(height, length) < 0.3, tokens % 3, tokens)
    tokens[torch.rand(height, length) < 0.2] = size // 2
    return tokens.to(device), torch.randint(2, (height, length), device=device)


def poison(monkeypatch):
    """Whatever is not written is nan, or a place far away."""
    empty, empty_like = torch.empty, torch.empty_like

    def fill(tensor):
        return tensor.fill_(torch.nan if tensor.is_floating_point() else -(2**31))

    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: fill(empty(*args, **kwargs)))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: fill(empty_like(*args, **kwargs)))


def check(found, expected, tolerance, what):
    scale = expected.abs().max().clamp(min=1)
    assert found.isfinite().all(), what
    assert ((found.double() - expected).abs().max() / scale).item() < tolerance, what


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("height", "length", "size", "width", "rate"),
    [(1, 1, 1, 2, 0.0), (3, 7, 11, 20, 0.1), (35, 5, 6, 33, 0.3), (10, 7, 400, 128, 0.0), (9, 6, 30, 130, 0.5)],
)
def test_embeddings_and_gradients(height, length, size, width, rate, dtype, device, monkeypatch):
    torch.manual_seed(height)
    parameters = tables(size, length + 2, width, dtype, device)
    tokens, segments = rows(height, length, size, device)
    keys = row_keys(1, 2, torch.arange(height, dtype=torch.int32, device=device))
    d_out = torch.randn(height, length, width).to(device, dtype)
    exact = [parameter.detach().double().requires_grad_() for parameter in parameters]
    expected = run(plainly_embedded, tokens, segments, exact, rate, keys)
    expected.backward(d_out.double())
    with monkeypatch.context() as patch:
        poison(patch)
        found = run(_Embedded.apply, tokens, segments, parameters, rate, keys)
        assert found.dtype == dtype
        found.backward(d_out)
    check(found, expected.detach(), TOLERANCE[dtype], "out")
    names = "word position segment weight bias".split()
    for name, parameter, precise in zip(names, parameters, exact, strict=True):
        check(gradient(parameter) - 1, gradient(precise), 2 * TOLERANCE[dtype], name)


@pytest.mark.parametrize(
    ("height", "length", "size", "chunk"), [(183, 6, 100, 64), (207, 5, 5000, 1024), (700, 1, 1, 256)]
)
def test_words_of_many_chunks(height, length, size, chunk, device, monkeypatch):
    monkeypatch.setattr(embedding, "_CHUNK", chunk)
    monkeypatch.setattr(embedding, "_BLOCK", 8)
    torch.manual_seed(1)
    width = 4
    parameters = tables(size, length, width, torch.float32, device)
    tokens, segments = rows(height, length, size, device)
    poison(monkeypatch)
    out = run(_Embedded.apply, tokens, segments, parameters, 0.0, None)
    d_out = torch.randn(height, length, width, device=device)
    out.backward(d_out, retain_graph=True)
    first = [gradient(parameter).clone() for parameter in parameters]
    exact = [parameter.detach().double().requires_grad_() for parameter in parameters]
    run(plainly_embedded, tokens, segments, exact, 0.0, None).backward(d_out.double())
    for parameter, precise in zip(parameters, exact, strict=True):
        check(gradient(parameter) - 1, gradient(precise), 1e-4, parameter.shape)
        gradient(parameter).fill_(1)
    out.backward(d_out)
    assert all(torch.equal(one, gradient(two)) for one, two in zip(first, parameters, strict=True))


def test_the_plain_function_serves_where_there_is_no_gpu():
    parameters = tables(9, 4, 8, torch.float32, "cpu")
    tokens, segments = rows(2, 4, 9, "cpu")
    keys = row_keys(0, 0, torch.arange(2, dtype=torch.int32))
    one, two = (run(function, tokens, segments, parameters, 0.2, keys) for function in (embed, plainly_embedded))
    assert torch.equal(one, two)
