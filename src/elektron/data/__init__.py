"""Text on its way to the model: corpus, tokenizer, shards, batches."""
