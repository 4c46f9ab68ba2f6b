import json
from dataclasses import asdict
from typing import Any, get_args

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, ElectraForMaskedLM, ElectraForPreTraining

import elektron
from elektron.interop.huggingface import (
    NAMES,
    Role,
    from_tensors,
    load_discriminator,
    load_encoder,
    load_generator,
    our_config,
    read_tensors,
    save,
    their_config,
    their_names,
    to_tensors,
)
from elektron.model.encoder import Embeddings, EncoderConfig
from elektron.model.heads import Discriminator, Generator
from elektron.model.initial import initialise
from elektron.model.weights import write_tensors

transformers.logging.set_verbosity_error()

SHAPES = {
    "narrow": EncoderConfig(layers=2, width=32, heads=4, feedforward_width=64, embedding_width=16, positions=40),
    "equal": EncoderConfig(layers=1, width=24, heads=2, feedforward_width=100, embedding_width=24, positions=64),
    "one head": EncoderConfig(layers=3, width=20, heads=1, feedforward_width=36, embedding_width=48, positions=33),
}
KINDS: dict[Role, Any] = {
    "discriminator": (Discriminator, ElectraForPreTraining),
    "generator": (Generator, ElectraForMaskedLM),
}
VOCABULARY = 77


def example(seed: int, rows: int = 3, length: int = 19):
    noise = torch.Generator().manual_seed(seed)
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, 7:], mask[1, 12:] = 0, 0
    return {
        "input_ids": torch.randint(VOCABULARY, (rows, length), generator=noise),
        "token_type_ids": torch.randint(2, (rows, length), generator=noise),
        "attention_mask": mask,
    }


def random_network(kind, shape: EncoderConfig, vocabulary: int = VOCABULARY, seed: int = 0):
    network = kind(shape, Embeddings(vocabulary, shape))
    initialise(network, seed)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=noise)
    return network.eval()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("role", KINDS)
@torch.no_grad()
def test_their_weights_give_the_same_logits_here(tmp_path, shape, role):
    ours, theirs = KINDS[role]
    torch.manual_seed(1)
    model = theirs(transformers.ElectraConfig(**their_config(shape, VOCABULARY, role, 0))).eval()
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path)
    network = (load_discriminator if role == "discriminator" else load_generator)(tmp_path)
    assert isinstance(network, ours)
    assert not network.training
    for seed in range(3):
        inputs = example(seed)
        assert torch.allclose(network(**inputs), model(**inputs).logits, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("role", KINDS)
@torch.no_grad()
def test_our_weights_give_the_same_logits_there(tmp_path, shape, role, small_tokenizer):
    ours, theirs = KINDS[role]
    network = random_network(ours, shape, small_tokenizer.vocab_size)
    save(network, small_tokenizer, tmp_path / "out", "a card")
    model, info = theirs.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values())
    for seed in range(3):
        inputs = example(seed)
        assert torch.allclose(network(**inputs), model.eval()(**inputs).logits, atol=1e-5)
    again = (elektron.load_discriminator if role == "discriminator" else elektron.load_generator)(tmp_path / "out")
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))


@torch.no_grad()
def test_folders_open_as_encoders_tokenizers_and_sentence_transformers(tmp_path, small_tokenizer):
    from sentence_transformers import SentenceTransformer

    network = random_network(Discriminator, SHAPES["narrow"], small_tokenizer.vocab_size)
    save(network, small_tokenizer, tmp_path / "out", "a card")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    texts = ["The old cat sees a dog.", "A bird."]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    hidden = AutoModel.from_pretrained(tmp_path / "out").eval()(**inputs).last_hidden_state
    assert torch.allclose(
        hidden, network.encoder(inputs.input_ids, inputs.token_type_ids, inputs.attention_mask), atol=1e-5
    )
    mask = inputs.attention_mask[..., None]
    pooled = (hidden * mask).sum(1) / mask.sum(1)
    embeddings = torch.from_numpy(SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts))
    assert torch.allclose(embeddings, pooled, atol=1e-5)


def test_every_name_is_in_the_table():
    for role, (kind, _) in KINDS.items():
        network = random_network(kind, SHAPES["narrow"])
        used = {name for own, _ in network.named_parameters() for name in their_names(own, role)}
        assert used == set(to_tensors(network))
    for role in get_args(Role):
        of_role = [name for ours, names in NAMES.items() if ours.startswith(("encoder.", f"{role}.")) for name in names]
        assert len(of_role) == len(set(of_role)) > len(NAMES) / 2
    with pytest.raises(ValueError, match="no Hugging Face name for 'encoder.rotary.weight'"):
        their_names("encoder.rotary.weight", "discriminator")


@pytest.mark.parametrize("kind", ["AutoModel", "AutoModelForPreTraining", "AutoModelForTokenClassification"])
def test_any_electra_s_encoder_is_taken(kind, tmp_path, small_tokenizer):
    network = random_network(Discriminator, SHAPES["narrow"], small_tokenizer.vocab_size)
    save(network, small_tokenizer, tmp_path / "out", "a card")
    getattr(transformers, kind).from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "theirs")
    found = dict(load_encoder(tmp_path / "theirs").named_parameters())
    for name, parameter in network.encoder.named_parameters():
        assert torch.equal(found[name], parameter), name
    tensors = read_tensors(tmp_path / "theirs")
    del tensors[next(name for name in tensors if "query" in name)]
    write_tensors(tmp_path / "theirs" / "model.safetensors", tensors)
    with pytest.raises(ValueError, match=r"no weights 'electra\.encoder\.layer\.0\.attention\.self\.query"):
        load_encoder(tmp_path / "theirs")


def test_a_name_left_over_on_either_side_raises():
    network = random_network(Discriminator, SHAPES["narrow"])
    tensors = to_tensors(network)
    with pytest.raises(ValueError, match=r"no place for: electra\.extra"):
        from_tensors(network, tensors | {"electra.extra": torch.zeros(1)}, "x")
    missing = dict(tensors)
    del missing["discriminator_predictions.dense.bias"]
    with pytest.raises(ValueError, match="is it the folder of a discriminator"):
        from_tensors(network, missing, "x")
    wrong = tensors | {"electra.embeddings_project.bias": torch.zeros(5)}
    with pytest.raises(ValueError, match=r"is \[5\], and would be \[32\]"):
        from_tensors(network, wrong, "x")
    from_tensors(network, tensors | {"electra.embeddings.position_ids": torch.zeros(1)}, "x")


def test_a_vocabulary_head_must_be_the_embeddings():
    network = random_network(Generator, SHAPES["narrow"])
    tensors = to_tensors(network)
    tied = tensors["electra.embeddings.word_embeddings.weight"]
    from_tensors(network, tensors | {"generator_lm_head.weight": tied.clone()}, "x")
    with pytest.raises(ValueError, match=r"generator_lm_head\.weight"):
        from_tensors(network, tensors | {"generator_lm_head.weight": tied + 1}, "x")


@pytest.mark.parametrize(
    ("key", "value"),
    [("model_type", "bert"), ("hidden_act", "relu"), ("type_vocab_size", 3), ("layer_norm_eps", 1e-5)],
)
def test_other_architectures_are_refused(tmp_path, key, value):
    config = their_config(SHAPES["narrow"], VOCABULARY, "discriminator", 0) | {key: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"{key} is {value!r}"):
        our_config(tmp_path)


def test_configs_survive_the_round_trip(tmp_path):
    for shape in SHAPES.values():
        (tmp_path / "config.json").write_text(json.dumps(their_config(shape, VOCABULARY, "generator", 0)))
        assert our_config(tmp_path) == (shape, VOCABULARY)
    assert asdict(SHAPES["narrow"])["width"] == 32


def test_pickles_and_damaged_weights_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(their_config(SHAPES["narrow"], VOCABULARY, "discriminator", 0)))
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    with pytest.raises(ValueError, match=r"model\.safetensors is missing; pytorch_model\.bin is a pickle"):
        load_discriminator(tmp_path)
    network = random_network(Discriminator, SHAPES["narrow"])
    save_file(to_tensors(network), tmp_path / "model.safetensors")
    load_discriminator(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="damaged"):
        load_discriminator(tmp_path)


def test_saving_replaces_a_folder_whole(tmp_path, small_tokenizer):
    network = random_network(Generator, SHAPES["narrow"], small_tokenizer.vocab_size)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "left over").write_text("x")
    with pytest.raises(ValueError, match="holds something else than a model"):
        save(network, small_tokenizer, tmp_path / "out", "a card")
    (tmp_path / "out" / "config.json").write_text("{}")
    save(network, small_tokenizer, tmp_path / "out", "a card")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    weights = ["manifest.json", "model.safetensors"]
    assert names == ["README.md", "config.json", *weights, "tokenizer.json", "tokenizer_config.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == set(to_tensors(network))


def test_onnx_is_checked_in_onnxruntime(tmp_path):
    import onnxruntime

    from elektron.interop.onnx import export_onnx

    network = random_network(Discriminator, SHAPES["narrow"])
    assert export_onnx(network, tmp_path / "model.onnx") < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    inputs = example(5)
    theirs = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})[0]
    with torch.no_grad():
        assert torch.allclose(torch.from_numpy(theirs), network(**inputs), atol=1e-4)
