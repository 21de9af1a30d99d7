fairseq-hydra-train \
    task.data=/data/manifests \
    distributed_training.distributed_world_size=8 \
    optimization.clip_norm=10 \
    --config-dir examples/wav2vec/config/pretraining \
    --config-name wav2vec2_base_librispeech
