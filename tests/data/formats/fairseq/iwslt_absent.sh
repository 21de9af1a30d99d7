#!/usr/bin/env bash
# Transformer on IWSLT'14
set -e
DATA=data-bin/iwslt14.tokenized.de-en
CUDA_VISIBLE_DEVICES=0 fairseq-train \
    $DATA \
    --arch transformer_iwslt_de_en --share-decoder-input-output-embed \
    --optimizer adam --adam-betas '(0.9, 0.98)' \
    --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 \
    --dropout 0.3 --weight-decay 0.0001 \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
    --max-tokens 4096
fairseq-generate $DATA --path checkpoints/checkpoint_best.pt --beam 5
