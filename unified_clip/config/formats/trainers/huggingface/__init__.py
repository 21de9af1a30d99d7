"""The configuration formats of Hugging Face, and of trainers that use Hugging Face's TrainingArguments."""
