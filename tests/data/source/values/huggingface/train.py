from dataclasses import dataclass
from transformers import HfArgumentParser, TrainingArguments


@dataclass
class Arguments:
    clip: float = 1.5


parser = HfArgumentParser((TrainingArguments, Arguments))
training_args, args = parser.parse_args_into_dataclasses()
show(args.clip)  # value 1.5: default of field Arguments.clip
show(training_args.max_grad_norm)  # unknown: TrainingArguments.max_grad_norm is set outside of the project.
