from transformers import TrainingArguments

args = TrainingArguments(output_dir="out", max_grad_norm=1.0)
