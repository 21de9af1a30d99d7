"""The formats of Hugging Face, and of trainers on its TrainingArguments."""
