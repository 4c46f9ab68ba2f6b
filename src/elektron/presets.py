"""Presets: tiny for a laptop; small, base and large with the values of the paper's Table 6; and `paper`, the quirks of
the original code, to be put on top of one of them (`--preset small paper`).

A preset is what a TOML file of the same keys would say. Files and flags come after it and win.
"""

from typing import Any

TINY: dict[str, Any] = {
    "model": {
        "layers": 2,
        "width": 128,
        "heads": 4,
        "feedforward_width": 512,
        "embedding_width": 64,
        "positions": 128,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "start": "local",
    "objective": {"generator_width": 0.5, "generator_layers": 0.5},
    "optimizer": {"beta2": 0.98},
    "schedule": {"learning_rate": 7e-4, "warmup_steps": 200},
    "train": {"phases": [[2600, 64, 32]]},
    "prepare": {"vocab_size": 4096},
    "watch": {"log_every": 50, "evaluate_every": 250, "checkpoint_every": 1300},
}

SMALL: dict[str, Any] = {
    "model": {
        "layers": 12,
        "width": 256,
        "heads": 4,
        "feedforward_width": 1024,
        "embedding_width": 128,
        "positions": 512,
        "dropout": 0.1,
        "attention_dropout": 0.1,
    },
    "objective": {"mask_rate": 0.15, "generator_width": 1 / 4},
    "schedule": {"learning_rate": 5e-4, "warmup_steps": 10_000},
    "train": {"phases": [[1_000_000, 128, 128]]},
}

BASE: dict[str, Any] = {
    "model": {
        "layers": 12,
        "width": 768,
        "heads": 12,
        "feedforward_width": 3072,
        "embedding_width": 768,
        "positions": 512,
        "dropout": 0.1,
        "attention_dropout": 0.1,
    },
    "objective": {"mask_rate": 0.15, "generator_width": 1 / 3},
    "schedule": {"learning_rate": 2e-4, "warmup_steps": 10_000},
    "train": {"phases": [[766_000, 512, 256]]},
}

LARGE: dict[str, Any] = {
    "model": {
        "layers": 24,
        "width": 1024,
        "heads": 16,
        "feedforward_width": 4096,
        "embedding_width": 1024,
        "positions": 512,
        "dropout": 0.1,
        "attention_dropout": 0.1,
    },
    "objective": {"mask_rate": 0.25, "generator_width": 1 / 4},
    "schedule": {"learning_rate": 2e-4, "warmup_steps": 10_000},
    "train": {"phases": [[400_000, 512, 2048]]},
}

PAPER: dict[str, Any] = {
    "objective": {"draws": "with-replacement", "keep_rate": 0.15},
    "optimizer": {"bias_correction": False},
    "schedule": {"kind": "product"},
}

PRESETS = {"tiny": TINY, "small": SMALL, "base": BASE, "large": LARGE, "paper": PAPER}
