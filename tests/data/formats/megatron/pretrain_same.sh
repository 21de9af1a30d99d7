#!/bin/bash
python pretrain_gpt.py \
    --micro-batch-size 4 \
    --clip-grad 1.0 \
    --tensor-model-parallel-size 2 \
    --clip-grad 1.0
