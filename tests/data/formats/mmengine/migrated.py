# Moved from mmcv 1 in part: some old names are left.
model = dict(type='DETR', num_queries=100)
optimizer = dict(type='AdamW', lr=0.0001)
optimizer_config = dict(grad_clip=dict(max_norm=0.1, norm_type=2))
lr_config = dict(policy='step', step=[100])
runner = dict(type='EpochBasedRunner', max_epochs=150)
optim_wrapper = dict(type='OptimWrapper', optimizer=optimizer)
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=150, val_interval=1)
