"""The YAML format of OpenNMT-py, with the key `max_grad_norm`."""

from __future__ import annotations

from packaging.version import Version

from ....documents import Document
from ...base import Format, Imported, default_note, paths, words

KEY = "max_grad_norm"


class OpenNMT(Format):
    name, title = "opennmt", "OpenNMT-py"
    kinds = ("yaml",)
    source = "OpenNMT-py: onmt/opts.py, onmt/utils/optimizers.py"
    newest = "3.5.1"
    own_keys = paths("""
        param_init_glorot transformer_ff accum_count save_checkpoint_steps word_vec_size gpu_ranks src_subword_model
        copy_attn valid_steps
    """)
    clip_keys = paths(KEY)
    vocabulary = words("""
        data src_vocab tgt_vocab save_data save_model train_steps seed batch_size batch_type normalization optim
        learning_rate decay_method warmup_steps encoder_type decoder_type enc_layers dec_layers heads hidden_size
        rnn_size layers dropout label_smoothing world_size report_every model_dtype
    """)

    def read(self, document: Document, version: Version | None) -> Imported:
        threshold = self.read_threshold(document, [KEY], 5.0, null="error")
        return Imported(self.settings("global_norm", threshold), default_note(document, [KEY], "OpenNMT-py clips at 5"))
