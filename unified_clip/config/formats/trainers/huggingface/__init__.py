"""The formats of Hugging Face, and of trainers that use its TrainingArguments."""
