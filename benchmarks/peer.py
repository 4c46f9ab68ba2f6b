"""The peer of our benchmarks: ELECTRA pre-training as people wire it by hand from transformers' two classes.

ElectraForMaskedLM and ElectraForPreTraining with tied embeddings and the losses they give for `labels`,
torch.multinomial, clipping, AdamW. On a GPU: bfloat16 autocast, fused AdamW, and torch.compile around all from the
masking to the loss if wanted (nothing in it breaks the graph). Shapes: B rows, T tokens, K masked, V vocabulary.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ElectraConfig as TheirConfig
from transformers import ElectraForMaskedLM, ElectraForPreTraining

from elektron.data.batches import Batch
from elektron.data.tokenizer import Specials
from elektron.interop.huggingface import their_config
from elektron.kernels.masking import masked_count
from elektron.model.encoder import EncoderConfig
from elektron.objectives.objective import ObjectiveConfig, generator_shape

SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)


def networks(
    shape: EncoderConfig, config: ObjectiveConfig, vocabulary: int
) -> tuple[ElectraForMaskedLM, ElectraForPreTraining]:
    """Generator and discriminator with one set of embeddings."""
    small = generator_shape(shape, config)
    discriminator = ElectraForPreTraining(TheirConfig(**their_config(shape, vocabulary, "discriminator", 0)))
    generator = ElectraForMaskedLM(TheirConfig(**their_config(small, vocabulary, "generator", 0)))
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
    return generator.train(), discriminator.train()


def peer(
    shape: EncoderConfig,
    config: ObjectiveConfig,
    vocabulary: int,
    device: torch.device,
    compiled: bool = False,
    trimmed: bool = False,
) -> Callable[[Batch, int, float], None]:
    """An update to be called as ours is. `trimmed` takes the generator's loss at the masked tokens only (the classes
    compute the vocabulary's scores of every token all the same)."""
    generator, discriminator = networks(shape, config, vocabulary)
    parameters = list(nn.ModuleList((generator, discriminator)).to(device).parameters())  # the shared ones once
    optimizer = torch.optim.AdamW(
        parameters, lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True if device.type == "cuda" else None
    )

    def loss_of(original: Tensor, segments: Tensor) -> Tensor:
        count = masked_count(original.shape[1], config.mask_rate)
        special = (original == SPECIALS.cls) | (original == SPECIALS.sep)
        chances = torch.rand(original.shape, device=device).masked_fill(special, 2.0)
        positions = chances.topk(count, largest=False).indices  # [B, K]
        rows = torch.arange(len(original), device=device)[:, None]
        targets = original.gather(1, positions)
        masked = original.scatter(1, positions, SPECIALS.mask)
        labels = None if trimmed else torch.full_like(original, -100).scatter(1, positions, targets)
        said = generator(input_ids=masked, token_type_ids=segments, labels=labels)
        logits = said.logits[rows, positions].flatten(0, 1)  # [B * K, V]
        generator_loss = F.cross_entropy(logits, targets.flatten()) if trimmed else said.loss
        samples = torch.multinomial(logits.detach().float().softmax(-1), 1).view_as(targets)
        corrupted = original.scatter(1, positions, samples)
        judged = discriminator(input_ids=corrupted, token_type_ids=segments, labels=(corrupted != original).long())
        return config.generator_weight * generator_loss + config.discriminator_weight * judged.loss

    differentiable = torch.compile(loss_of, dynamic=False) if compiled else loss_of

    def update(batch: Batch, step: int, learning_rate: float) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = differentiable(*(tensor.to(device, non_blocking=True) for tensor in batch[:2]))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()

    return update
