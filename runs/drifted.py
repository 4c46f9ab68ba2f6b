"""Google's ELECTRA-Small from where a package index has it, as a folder for `elektron finetune --model`.

    pip download --no-deps deepsa==0.1.2
    python runs/drifted.py deepsa-0.1.2-py3-none-any.whl vocab.txt models/drifted

deepsa learned to tell the sentiment of texts with it, all layers included, so it has drifted from what was published.
On STS-B it still comes near what was published; CoLA it does not learn any more (docs/results.md#the-record-run).
vocab.txt is BERT's, uncased.
"""

import io
import json
import shutil
import sys
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save_file

PREFIX = "model.model."


def main(wheel: str, vocabulary: str, folder: str) -> None:
    with zipfile.ZipFile(wheel) as files:
        saved = torch.load(io.BytesIO(files.read("deepsa/model/model.ckpt")), map_location="cpu", weights_only=True)
        config = json.loads(files.read("deepsa/model/hf_text/config.json"))
    weights = {
        f"electra.{name.removeprefix(PREFIX)}": tensor.contiguous()
        for name, tensor in saved["state_dict"].items()
        if name.startswith(PREFIX)
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    save_file(weights, Path(folder, "model.safetensors"), {"format": "pt"})
    Path(folder, "config.json").write_text(json.dumps(config, indent=1) + "\n")
    shutil.copy(vocabulary, Path(folder, "vocab.txt"))
    print(f"{folder}: {sum(tensor.numel() for tensor in weights.values()):,} weights")


if __name__ == "__main__":
    main(*sys.argv[1:])
