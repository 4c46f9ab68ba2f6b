"""Elektron: ELECTRA-style pre-training. A folder of text in, a Hugging Face encoder out.

    import elektron
    discriminator = elektron.load_discriminator("runs/tiny/discriminator")
    logits = discriminator(input_ids, token_type_ids, attention_mask)    # [B, T], positive where a token looks replaced

Importing the package loads neither torch nor anything else; the names below are fetched when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elektron.interop.huggingface import load_discriminator, load_generator

__version__ = "0.1.0"
__all__ = ["__version__", "load_discriminator", "load_generator"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("elektron.interop.huggingface"), name)
    raise AttributeError(f"module 'elektron' has no attribute {name!r}")
