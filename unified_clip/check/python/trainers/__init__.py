"""Find clips that another library applies for a trainer, such as DeepSpeed for Hugging Face's Trainer."""
