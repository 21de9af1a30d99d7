fairseq-hydra-train \
    task.data=/data/manifests \
    --config-dir examples/wav2vec/config/pretraining \
    --config-name wav2vec2_base_librispeech
