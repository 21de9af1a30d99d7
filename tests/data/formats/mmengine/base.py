_base_ = ['../_base_/datasets/coco_detection.py', '../_base_/default_runtime.py']

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=0.0001, weight_decay=0.0001),
)
